//! What the kernel was told about the root.

/// The words of `/proc/cmdline` that matter here.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandLine {
    pub root: RootName,
    pub read_only: bool,
    pub init: String,
}

/// How the root is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootName {
    Device(String),
    Label(String),
    /// Lower-case, with hyphens.
    Uuid(String),
}

const ROOT_LABEL_DEFAULT: &str = "fluxvm-root";
const INIT_DEFAULT: &str = "/sbin/init";

impl CommandLine {
    /// Of several words of one kind the last counts, as for the kernel.
    pub fn parse(text: &str) -> Self {
        let mut line =
            Self { root: RootName::Label(ROOT_LABEL_DEFAULT.into()), read_only: false, init: INIT_DEFAULT.into() };
        for word in text.split_ascii_whitespace().take_while(|word| *word != "--") {
            match word.split_once('=') {
                Some(("root", name)) => line.root = root_name(name),
                Some(("init", path)) => line.init = path.into(),
                None if word == "ro" => line.read_only = true,
                None if word == "rw" => line.read_only = false,
                _ => {}
            }
        }
        line
    }
}

fn root_name(name: &str) -> RootName {
    match name.split_once('=') {
        Some(("LABEL", label)) => RootName::Label(label.into()),
        Some(("UUID", uuid)) => RootName::Uuid(uuid.to_ascii_lowercase()),
        _ => RootName::Device(name.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_kind_counts() {
        let line = CommandLine::parse("console=ttyS0 root=/dev/vda ro rw root=LABEL=x init=/bin/a -- ro root=/dev/y\n");
        let init = "/bin/a".into();
        assert_eq!(line, CommandLine { root: RootName::Label("x".into()), read_only: false, init });
        assert_eq!(CommandLine::parse("root=UUID=AB-1 ro").root, RootName::Uuid("ab-1".into()));
        assert!(CommandLine::parse("quiet ro").read_only);
        assert_eq!(CommandLine::parse("").init, "/sbin/init");
    }
}

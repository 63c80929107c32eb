//! Who may ask. Without a token nobody may, unless the operator said so.

use subtle::ConstantTimeEq;
use wire::limits::TOKEN_MAX;
use wire::{ErrorCode, Fault};

/// What a caller must present.
pub enum Authority {
    /// This token, compared in constant time.
    Token(Box<[u8]>),
    /// Nothing; for guests whose operator accepts any caller on the channel.
    Anyone,
    /// Nothing would do.
    Nobody,
}

impl Authority {
    /// The token without surrounding white space. An empty one admits nobody.
    pub fn token(bytes: &[u8]) -> Self {
        match bytes.trim_ascii() {
            [] => Self::Nobody,
            token => Self::Token(token.into()),
        }
    }

    /// Error `UNAUTHORIZED`.
    pub fn admit(&self, token: Option<&str>) -> Result<(), Fault> {
        let refuse = |why: &str| Err(Fault::new(ErrorCode::Unauthorized, why));
        match (self, token) {
            (Self::Anyone, _) => Ok(()),
            (Self::Nobody, _) => refuse("this guest agent has no token and refuses every request"),
            (Self::Token(expected), Some(token)) if token.len() <= TOKEN_MAX => {
                if token.as_bytes().ct_eq(expected).into() { Ok(()) } else { refuse("wrong token") }
            }
            (Self::Token(_), Some(_)) => refuse("wrong token"),
            (Self::Token(_), None) => refuse("a token is needed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_admitted() {
        let authority = Authority::token(b" secret\n");
        assert!(authority.admit(Some("secret")).is_ok());
        for wrong in ["", "secre", "secrets", "Secret", " secret"] {
            assert_eq!(authority.admit(Some(wrong)).unwrap_err().code, ErrorCode::Unauthorized, "{wrong:?}");
        }
        assert!(authority.admit(None).is_err());
    }

    #[test]
    fn no_token_admits_nobody() {
        assert!(Authority::token(b" \n").admit(Some("")).is_err());
        assert!(Authority::Nobody.admit(None).is_err());
        assert!(Authority::Anyone.admit(None).is_ok());
    }
}

# Lists the trees named by the arguments, for the agent on the host. Needs a POSIX shell and find; what else there is
# decides how: GNU find and sha256sum in two passes, otherwise a slower loop over ls. `flavour` is set by the caller:
# `portable` does without GNU tools even if they are there.
#
# Prints one line `<sha256|stat> <base64|hex>`, then, in that encoding (so that names of any bytes pass through a channel
# that only knows text), fields that each end with NUL:
#
#   TYPE SIZE MODE UID GID MTIME ./PATH   EXTRA   an entry. TYPE: f, u (a file that cannot be read), d, l, else other;
#                                                 MODE: octal, or as ls has it; EXTRA: a link's target, or a hash
#   H                                             from here on hashes only, `HASH  ./PATH` each
#   E                                             the walk is complete; without it nothing counts
#
# Exits before that with 40 (a path is missing), 41 (not a directory), 42 (a symbolic link on the way), 43 (denied) or
# 44 (tools are missing).

# A process sandbox has its root in WORKSPACE; everywhere else paths start at /.
cd "${WORKSPACE:-/}" || exit 43
root=$(pwd -P; printf x)
root=${root%?x}
for path do
  [ -h "$path" ] && exit 42
  [ -e "$path" ] || exit 40
  [ -d "$path" ] || exit 41
  [ -n "${WORKSPACE:-}" ] || continue
  real=$(cd "$path" && pwd -P && printf x) || exit 43
  [ "${real%?x}" = "$root${path#.}" ] || exit 42
done

command -v find >/dev/null || exit 44
mode=stat
command -v sha256sum >/dev/null && mode=sha256
walk=portable
if [ "$flavour" = best ]; then
  case $(find / -maxdepth 0 -readable -printf '%y %s %m %U %G %T@ %p\n' 2>/dev/null) in
    d\ *\ /) if [ $mode = stat ] || : | sha256sum -z >/dev/null 2>&1; then walk=gnu; fi ;;
  esac
fi
if [ $walk = portable ]; then
  command -v ls >/dev/null && command -v readlink >/dev/null || exit 44
  [ $mode = sha256 ] || stat -c %Y / >/dev/null 2>&1 || exit 44
fi
encoding=base64
command -v base64 >/dev/null || encoding=hex
[ $encoding = base64 ] || command -v od >/dev/null || exit 44

list_gnu() {
  find "$@" -xdev \( -type f ! -readable -printf 'u %s %m %U %G %T@ %p\0\0' \
    -o -printf '%y %s %m %U %G %T@ %p\0%l\0' \) || return
  printf 'H\0'
  [ $mode = stat ] || find "$@" -xdev -type f -readable -exec sha256sum -z -- {} + || return
  printf 'E\0'
}

list_portable() {
  find "$@" -xdev -exec sh -c '
    mode=$1
    shift
    set -f
    fail() { echo "cannot list $path" >&2; exit 1; }
    fields_of_ls() { perms=$1 uid=$3 gid=$4 size=$5; }
    for path do
      type=o extra= time=0
      if [ -h "$path" ]; then
        type=l
        extra=$(readlink "$path" && printf x) || fail
        extra=${extra%?x}
      elif [ -d "$path" ]; then
        type=d
        [ -r "$path" ] && [ -x "$path" ] || fail
      elif [ -f "$path" ]; then
        type=f
        [ -r "$path" ] || type=u
        if [ $mode = stat ]; then
          time=$(stat -c %Y "$path") || fail
        elif [ $type = f ]; then
          extra=$(sha256sum <"$path") || fail
          extra=${extra%% *}
        fi
      fi
      line=$(ls -ldn "$path") || fail
      fields_of_ls $line
      printf "%s %s %s %s %s %s %s\0%s\0" $type $size $perms $uid $gid $time "$path" "$extra"
    done' sh $mode {} + || return
  printf 'H\0E\0'
}

encode() {
  if [ $encoding = base64 ]; then base64; else od -An -v -tx1; fi
}

echo "$mode $encoding"
list_$walk "$@" | encode

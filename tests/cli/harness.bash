# What the scripts of this folder share: source "$(dirname "$0")/harness.bash".
# Each script runs in a folder of its own that is removed at the end, with the program's path in RMSFOLD.
set -uo pipefail
: "${RMSFOLD:?the path of the program}" "${RMSFOLD_SOURCE_DIR:?the repository}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

status=0        # of the last run
checks=0
failures=0

# run ARGUMENTS...: runs the program; its output is in $work/stdout and $work/stderr, its exit status in $status.
run() {
  "$RMSFOLD" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null
  status=$?
  last_command="rmsfold $*"
}

fail() {
  failures=$((failures + 1))
  printf 'FAILED: %s\n  after: %s (exit status %d)\n' "$1" "${last_command:-nothing}" "$status"
  sed 's/^/  stdout: /' "$work/stdout" | tail -n 40
  sed 's/^/  stderr: /' "$work/stderr" | tail -n 40
}

expect_status() { checks=$((checks + 1)); [ "$status" -eq "$1" ] || fail "expected exit status $1"; }
expect_stdout() { checks=$((checks + 1)); grep -qF -- "$1" "$work/stdout" || fail "expected on stdout: $1"; }
expect_stderr() { checks=$((checks + 1)); grep -qF -- "$1" "$work/stderr" || fail "expected on stderr: $1"; }
expect_silent() { checks=$((checks + 1)); [ ! -s "$work/stdout" ] && [ ! -s "$work/stderr" ] || fail "expected no output"; }
expect_same() { checks=$((checks + 1)); cmp -s -- "$1" "$2" || fail "expected equal bytes: $1 and $2"; }
expect_different() { checks=$((checks + 1)); ! cmp -s -- "$1" "$2" || fail "expected different bytes: $1 and $2"; }
expect_exists() { checks=$((checks + 1)); [ -e "$1" ] || fail "expected to exist: $1"; }
expect_absent() { checks=$((checks + 1)); [ ! -e "$1" ] || fail "expected not to exist: $1"; }

# finish: the last line of every script.
finish() {
  if [ "$checks" -eq 0 ]; then
    printf 'FAILED: the script checked nothing\n'
    exit 1
  fi
  printf '%d checks, %d failed\n' "$checks" "$failures"
  [ "$failures" -eq 0 ]
}

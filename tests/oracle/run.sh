#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the Python oracle against the programs of a build folder:  tests/oracle/run.sh BUILD_DIR [oracle.py options]
# Python packages go to a virtual environment inside that folder, which is used again next time.
set -eu
if [ $# -lt 1 ] || [ ! -d "$1" ]; then
  echo "usage: tests/oracle/run.sh BUILD_DIR [--only tiny|smollm2|golden] [--write-results]" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
venv=$build/oracle-venv
wanted=$(cat "$here/requirements.txt" "$here/requirements-nodeps.txt")
if [ ! -f "$venv/complete" ] || [ "$(cat "$venv/complete")" != "$wanted" ]; then
  rm -f "$venv/complete"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -r "$here/requirements.txt"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
    -r "$here/requirements-nodeps.txt"
  echo "$wanted" > "$venv/complete"
fi
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1 TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1
exec "$venv/bin/python" "$here/oracle.py" "$build" "$@"

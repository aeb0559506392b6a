#!/bin/sh
# Make the virtual environment $VENV hold this package, editable, with all that the demo and the
# tests need. Does nothing when the files that decide what is installed are as they were.
set -eu

# the front end and the Jupyter configuration are copied by pip, even for an editable install
stamp="$VENV/.gpuqueue-installed"
sum=$({
    echo "$TORCH"
    cat pyproject.toml
    find jupyter_ext/labextension jupyter_ext/config widgets/panel -type f | LC_ALL=C sort |
        while IFS= read -r file; do cksum "$file"; done
} | cksum)
[ -x "$VENV/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ] && exit 0

if [ ! -x "$VENV/bin/python" ]; then
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "gpuqueue needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..." >&2
        exit 1
    }
    echo "Making the virtual environment $VENV ..."
    "$PYTHON" -m venv "$VENV" || {
        echo "On Debian and Ubuntu, venv is a package of its own: apt install python3-venv" >&2
        exit 1
    }
fi
echo "Installing gpuqueue, $TORCH and the test tools into $VENV (minutes, the first time) ..."
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$TORCH" -e ".[test]"
echo "$sum" >"$stamp"

#!/bin/sh
# Check the types of the JavaScript (JSDoc) with tsc; says so where there is nothing to do it with.
set -eu

files=$(find jupyter_ext widgets \( -name '*.js' -o -name '*.mjs' \) -not -path '*/node_modules/*')
if ! command -v npm >/dev/null; then
    echo "tsc: SKIPPED, the JavaScript was not checked: npm is not installed"
    exit 0
fi
tools="$VENV/$TYPESCRIPT"
if [ ! -x "$tools/node_modules/.bin/tsc" ]; then
    npm install --silent --no-save --no-package-lock --prefix "$tools" "$TYPESCRIPT"
fi
"$tools/node_modules/.bin/tsc" --noEmit -p widgets/tsconfig.json
echo "tsc: $(echo "$files" | wc -l) files checked"

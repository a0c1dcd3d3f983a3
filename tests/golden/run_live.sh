#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The live comparison as a test: skipped (77) where setup_reference.sh has not been run, since that fetches much.
#
#   tests/golden/run_live.sh EXPERTMESH [ARGUMENTS OF live_compare.py]
set -euo pipefail
python=${EXPERTMESH_REF:-${EXPERTMESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/expertmesh}/reference}/bin/python
if [ ! -x "$python" ]; then
  echo "skipped: there is no reference environment; tests/golden/setup_reference.sh makes one"
  exit 77
fi
exec "$python" "$(dirname "$0")/live_compare.py" "$@"

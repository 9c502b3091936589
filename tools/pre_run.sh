#!/usr/bin/env bash
# Installs the environment on this host, once; bootstrap runs it on every host of the cluster.
#   pre_run.sh          a host with an NVIDIA driver must see its GPUs with PyTorch afterwards
#   pre_run.sh --gpu    the host must have GPUs
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

gpus=$(nvidia-smi --list-gpus 2>/dev/null || true)
if [ "${1:-}" = --gpu ] && [ -z "$gpus" ]; then
  echo "this host should have GPUs, and nvidia-smi lists none: take an image with an NVIDIA driver, such as image_id latest" >&2
  exit 3
fi
if [ -n "$gpus" ]; then
  "$ATOMO_PYTHON" - <<'PYTHON'
import sys

import torch

if not torch.cuda.is_available():
    built = torch.version.cuda
    sys.exit(
        f"PyTorch {torch.__version__} sees no CUDA device: "
        + (f"it is built for CUDA {built}; the driver may be too old for it" if built else
           "it is a build for CPUs; delete the environment's folder and install again")
    )
print(f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices")
PYTHON
fi
echo "ready"

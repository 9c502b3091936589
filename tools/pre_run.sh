#!/usr/bin/env bash
# Installs the environment on this host; bootstrap runs the script on every host of the cluster.
#   pre_run.sh          on a host with an NVIDIA driver, PyTorch must see the GPUs afterwards
#   pre_run.sh --gpu N  the host must have N GPUs; without a driver the script installs nothing
set -euo pipefail

gpus=$(nvidia-smi --list-gpus 2>&1) && count=$(grep -c '^GPU ' <<<"$gpus") || count=0
if [ "${1:-}" = --gpu ] && [ "$count" -lt "${2:-1}" ]; then
  echo "this host should have ${2:-1} GPUs, and nvidia-smi lists $count (${gpus##*: }): take an image with an NVIDIA driver for them, such as image_id latest; where it is one, its driver may still be starting, or a GPU is broken" >&2
  exit 3
fi
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

if [ "$count" -gt 0 ]; then
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

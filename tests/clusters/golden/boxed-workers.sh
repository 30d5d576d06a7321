#!/bin/bash
# Rollbook: workers of /runs/math
#SBATCH --job-name=math-worker
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:h100:4
#SBATCH --output=/runs/math/logs/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --array=0-1
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail
export A='b c'
exec /opt/rollbook/bin/python -P -m rollbook.clusters.sandbox_sidecar /runs/math 1 -- srun --overlap --ntasks=1 --no-container-mount-home --container-image=/images/rollbook+26.sqsh --container-mounts=/models:/models:ro,/data:/data,/runs/math:/runs/math --container-workdir=/data --container-env=HF_TOKEN,A,ROLLBOOK_SANDBOX,NEMO_SKILLS_SANDBOX_HOST,NEMO_SKILLS_SANDBOX_PORT python3 -P -m rollbook.clusters.node worker /runs/math 1

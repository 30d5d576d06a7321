#!/bin/bash
# Rollbook: workers of /runs/math
#SBATCH --job-name=math-worker
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --output=/runs/math/logs/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --array=0-1
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail
exec apptainer exec --nv --bind /data:/data --bind /runs/math:/runs/math --pwd /data /images/rollbook.sif python3 -P -m rollbook.clusters.node worker /runs/math 1

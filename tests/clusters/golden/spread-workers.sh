#!/bin/bash
# Rollbook: workers of /runs/math
#SBATCH --job-name=math-worker
#SBATCH --partition=batch
#SBATCH --time=4:00:00
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --output=/runs/math/logs/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --array=0-3
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail
exec /opt/rollbook/bin/python -P -m rollbook.clusters.node worker /runs/math 1

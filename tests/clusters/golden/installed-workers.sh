#!/bin/bash
# Rollbook: workers of /runs/math
#SBATCH --job-name=math-worker
#SBATCH --partition=batch
#SBATCH --time=4:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --output=/runs/math/logs/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --array=0-1
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail
exec /opt/rollbook/bin/python -P /runs/math/jobs/0001/install.py -m rollbook.clusters.sandbox_sidecar /runs/math 1 -- /opt/rollbook/bin/python -P /runs/math/jobs/0001/install.py -m rollbook.clusters.node worker /runs/math 1

#!/bin/bash
# Rollbook: workers of /runs/math
#SBATCH --job-name=math-worker
#SBATCH --account='lab'"'"'s account'
#SBATCH --partition=cpu
#SBATCH --time=4:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --output=/runs/math/logs/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --mem=4G
#SBATCH --array=0-15
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
set -euo pipefail
export OMP_NUM_THREADS=1
export NOTE='it'"'"'s $HOME; rm -rf /'
set +u
module load cuda/12
ulimit -n 65536
set -u
cd '/data/my project'
exec /opt/rollbook/bin/python -P -m rollbook.clusters.node worker /runs/math 1

#!/bin/bash
# Rollbook: model servers of /runs/math
#SBATCH --job-name=math-server
#SBATCH --account='lab'"'"'s account'
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --time=4:00:00
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=8
#SBATCH --output=/runs/math/logs/slurm-%A_%a.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --constraint='h100&nvlink'
#SBATCH --mem=0
#SBATCH --array=0-3
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
exec /opt/rollbook/bin/python -P -m rollbook.clusters.node server /runs/math 1

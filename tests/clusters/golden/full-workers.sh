#!/bin/bash
# Rollbook: workers of /runs/it's 100% math
#SBATCH --job-name=math-worker
#SBATCH --account='lab'"'"'s account'
#SBATCH --partition=batch
#SBATCH --qos=high
#SBATCH --time=4:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=8
#SBATCH --output='/runs/it'"'"'s 100%% math/logs/slurm-%A_%a.log'
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --constraint='h100&nvlink'
#SBATCH --mem=0
#SBATCH --array=0-7
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --exclude=n1,n2
set -euo pipefail
export PYTHONPATH='/runs/it'"'"'s 100% math/jobs/pack/my project'"${PYTHONPATH:+:$PYTHONPATH}"
export OMP_NUM_THREADS=1
export NOTE='it'"'"'s $HOME; rm -rf /'
set +u
module load cuda/12
ulimit -n 65536
set -u
cd '/data/my project'
exec /opt/rollbook/bin/python -P -m rollbook.clusters.node worker '/runs/it'"'"'s 100% math' 2

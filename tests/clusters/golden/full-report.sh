#!/bin/bash
# Rollbook: report of /runs/it's 100% math
#SBATCH --job-name=math-report
#SBATCH --account='lab'"'"'s account'
#SBATCH --partition=cpu
#SBATCH --time=4:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --output='/runs/it'"'"'s 100%% math/logs/slurm-%j.log'
#SBATCH --open-mode=append
#SBATCH --mem=4G
set -euo pipefail
set +u
module load cuda/12
ulimit -n 65536
set -u
exec /opt/rollbook/bin/python -P -m rollbook report '/runs/it'"'"'s 100% math'

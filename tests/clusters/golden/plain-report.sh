#!/bin/bash
# Rollbook: report of /runs/math
#SBATCH --job-name=math-report
#SBATCH --partition=batch
#SBATCH --time=4:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --output=/runs/math/logs/slurm-%j.log
#SBATCH --open-mode=append
set -euo pipefail
exec /opt/rollbook/bin/python -P -m rollbook report /runs/math

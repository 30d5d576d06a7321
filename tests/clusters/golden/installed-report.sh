#!/bin/bash
# Rollbook: report of /runs/math
#SBATCH --job-name=math-report
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --output=/runs/math/logs/slurm-%j.log
#SBATCH --open-mode=append
set -euo pipefail
exec srun --overlap --ntasks=1 --no-container-mount-home --container-image=/images/rollbook+26.sqsh --container-mounts=/models:/models:ro,/runs/math:/runs/math --container-env=HF_TOKEN python3 -P /runs/math/jobs/0001/install.py -m rollbook report /runs/math

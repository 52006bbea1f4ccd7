#!/bin/bash
#SBATCH --job-name=array
#SBATCH --array=0-9%4
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=2
#SBATCH --partition=p
#SBATCH --time=1-02:00
#SBATCH --energy-policy=cap
#SBATCH --energy-cap=1.6kW
#SBATCH --energy-gpu-cap=250W
#SBATCH --energy-model=gemm
#SBATCH --energy-tag=run/1

# Afterwards: senergy job JOBID
module load x
./point $SLURM_ARRAY_TASK_ID

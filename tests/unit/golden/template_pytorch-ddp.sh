#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
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
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$(( SLURM_CPUS_PER_TASK / 2 > 0 ? SLURM_CPUS_PER_TASK / 2 : 1 ))
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
    --nnodes="$SLURM_NNODES" --nproc-per-node=2 \
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$first_node:29500" \
    'train it'"'"'s.py'

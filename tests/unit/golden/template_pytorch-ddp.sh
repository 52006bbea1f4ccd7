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
# `senergy sweep --preset pytorch-ddp` of this script sets the variables to other values.
PROCESSES="${PROCESSES:-2}"
threads=$(( SLURM_CPUS_PER_TASK / PROCESSES > 0 ? SLURM_CPUS_PER_TASK / PROCESSES : 1 ))
export OMP_NUM_THREADS="${THREADS_PER_PROCESS:-$threads}"
first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python3 -m torch.distributed.run \
    --nnodes="$SLURM_NNODES" --nproc_per_node="$PROCESSES" \
    --rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d --rdzv_endpoint="$first_node:29500" \
    'train it'"'"'s.py'

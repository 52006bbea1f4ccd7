#!/bin/bash
#SBATCH --job-name=mpi
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --partition=p
#SBATCH --time=1-02:00
#SBATCH --exclusive
#SBATCH --energy-policy=cap
#SBATCH --energy-cap=1.6kW
#SBATCH --energy-model=gemm
#SBATCH --energy-tag=run/1

# Afterwards: senergy job JOBID
module load x
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
# Since Slurm 22.05 srun no longer takes --cpus-per-task from the job.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=cores ./solver input.dat

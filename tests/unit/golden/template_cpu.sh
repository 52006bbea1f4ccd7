#!/bin/bash
#SBATCH --job-name=cpu
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --partition=p
#SBATCH --time=1-02:00
#SBATCH --exclusive
#SBATCH --energy-policy=cap
#SBATCH --energy-cap=1.6kW
#SBATCH --energy-model=gemm
#SBATCH --energy-tag=run/1

# Afterwards: senergy job JOBID
module load x
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
./simulate --steps 10

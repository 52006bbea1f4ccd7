function slurm_job_submit ( job_desc, part_list, submit_uid )
	if job_desc.account == "closed" then return slurm.ERROR end
	return slurm.SUCCESS
end
slurm_job_modify = function(...) return slurm.SUCCESS end
-- no line break at the end
-- job_submit.lua of the physics cluster

local limits = { debug = 30, batch = 2880 } -- minutes by partition

local function minutes(job_desc)
    if job_desc.time_limit == slurm.NO_VAL then
        return nil
    end
    return job_desc.time_limit
end

--[[ Jobs without a time limit get the default of their partition.
     return slurm.ERROR would reject them. ]]
function slurm_job_submit(job_desc, part_list, submit_uid)
    local partition = job_desc.partition or "batch"
    if minutes(job_desc) == nil then
        job_desc.time_limit = limits[partition] or 60
        slurm.log_info("slurm_job_submit: job of uid %u gets %u minutes", submit_uid, job_desc.time_limit)
    end
    if job_desc.name == "forbidden" then
        slurm.log_user("jobs called forbidden are not accepted")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if job_desc.comment == nil then
        slurm.log_info("slurm_job_modify: job %u by uid %u", job_rec.job_id, modify_uid)
    end
    return slurm.SUCCESS
end

slurm.log_info("initialized")
return slurm.SUCCESS

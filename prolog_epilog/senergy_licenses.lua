-- Licenses in watts for jobs under a power budget; senergy_submit.lua calls this module.
--
-- The license of a job is the power in watts that its start adds above idle. Slurm starts only jobs whose licenses
-- are free, and senergyctld keeps the free licenses equal to the headroom of the budget. This module computes the
-- license from the requested resources and the power table in the policy file. It is an upper limit: senergyctld
-- replaces it by the predicted power. Whatever users request under the name of the license is removed. Lua 5.1
-- to 5.4.

local M = {}

local MAX_COUNT = 2147483647 -- Slurm keeps a count in 32 bits and wraps larger ones without an error
local NO_VALUE, NO_VALUE_16 = 4294967294, 65534
local PENDING = 0
local SPREAD_JOB = 256 -- bit of --spread-job in `bitflags`, in all releases
-- Returns a list with the items of two lists.
local function joined(first, second)
    local all = {}
    for _, list in ipairs({ first, second }) do
        for _, item in ipairs(list) do
            all[#all + 1] = item
        end
    end
    return all
end

local REQUEST_TEXTS = {
    "partition",
    "gres",
    "tres_per_job",
    "tres_per_node",
    "tres_per_socket",
    "tres_per_task",
    "cpus_per_tres",
}
local SIZE_FIELDS = joined({
    "min_nodes",
    "max_nodes",
    "min_cpus",
    "num_tasks",
    "cpus_per_task",
    "pn_min_cpus",
    "ntasks_per_node",
    "ntasks_per_tres",
    "shared",
    "core_spec",
    "thread_spec",
    "req_nodes",
}, REQUEST_TEXTS)
-- Fields of which Slurm refuses longer texts, but only after job_submit (_test_job_desc_fields). Slurm does not limit
-- `licenses` in every release.
local LIMITED_FIELDS = joined({ "account", "qos" }, REQUEST_TEXTS)
local LIMIT = 1024
local SHORT_FIELDS = {
    cpus_per_task = true,
    pn_min_cpus = true,
    ntasks_per_node = true,
    ntasks_per_tres = true,
    shared = true,
    core_spec = true,
    thread_spec = true,
}
local MAX_NODES = 1e6 -- larger numbers mean no limit, or an expression that is not valid

-- Reads the lines of the policy file about licenses. Returns nil if there are none.
function M.parse(text)
    local rules = { users = {}, scopes = {}, power = {}, ours = {} }
    for line in string.gmatch(text or "", "[^\n]+") do
        local words = {}
        for word in string.gmatch(line, "[^ ]+") do
            words[#words + 1] = word
        end
        local power = rules.power[words[2]]
        if words[1] == "license" then
            rules.name, rules.max = words[2], tonumber(words[3])
            rules.ours[words[2] or ""] = true
        elseif words[1] == "license-users" then
            for i = 2, #words do
                rules.users[tonumber(words[i])] = true
            end
        elseif words[1] == "license-scope" and words[4] then
            rules.scopes[#rules.scopes + 1] = { name = words[2], kind = words[3], of = words[4] }
            rules.ours[words[2]] = true
        elseif words[1] == "license-delay" then
            rules.delay_s = tonumber(words[2])
        elseif words[1] == "license-power" and words[2] then
            power = { gpu_kinds = {} }
            for i = 3, #words do
                local key, value = string.match(words[i], "^(%a+)=(.*)$")
                power[key or words[i]] = key and tonumber(value) or true
            end
            rules.power[words[2]] = power
            if power.default then
                rules.default_partition = words[2]
            end
        elseif words[1] == "license-gpu" and power and words[4] then
            power.gpu_kinds[words[3]] = tonumber(words[4])
        end
    end
    return rules.name and rules.max and rules or nil
end

-- Returns a number of the job, or nil if it is not set.
local function number(job, name)
    local value = tonumber(job[name])
    local limit = SHORT_FIELDS[name] and NO_VALUE_16 or NO_VALUE
    return value and value >= 0 and value < limit and value or nil
end

local function text_of(job, name)
    local value = job[name]
    return type(value) == "string" and value ~= "" and value or nil
end

-- Returns the reason to refuse a job with a text that Slurm would refuse later, or nil. This module may not spend
-- time on such texts, because slurmctld waits.
local function long_text(job_desc)
    for _, name in ipairs(LIMITED_FIELDS) do
        local length = #(text_of(job_desc, name) or "")
        if length > LIMIT then
            return string.format("%s: %d characters; Slurm accepts at most %d", name, length, LIMIT)
        end
    end
    return nil
end

local function has(list, name)
    for one in string.gmatch(list or "", "[^,]+") do
        if one == name then
            return true
        end
    end
    return false
end

-- Slurm ignores the case of the names of accounts and QOS. It converts the names after job_submit, or not at all.
local function any_case(names)
    return names and names .. "," .. string.lower(names)
end

-- Returns the names of the licenses of a job: that of the cluster, and those of the budgets that cover the job.
-- `counts` are the job's licenses before a change. They decide about budgets of users if the user is not known, and
-- about budgets of QOS if `keeps_qos` is true. Slurm shows Lua only one QOS of a job with several (24.11 and later).
local function license_names(job, rules, counts, keeps_qos)
    local values = {
        account = any_case(text_of(job, "account") or text_of(job, "default_account")),
        qos = any_case(text_of(job, "qos") or text_of(job, "default_qos")),
        user = text_of(job, "user_name"),
        partition = text_of(job, "partition") or rules.default_partition,
    }
    local names = { rules.name }
    for _, scope in ipairs(rules.scopes) do
        local may_keep = scope.kind == "user" and not values.user or scope.kind == "qos" and keeps_qos
        if may_keep and counts and counts[scope.name] or has(values[scope.kind], scope.of) then
            names[#names + 1] = scope.name
        end
    end
    return names
end

local function is_ours(item, rules)
    local name = not string.find(item, "@", 1, true) and string.match(item, "^%s*([^%s:=*]+)")
    return name and rules.ours[name] or false
end

-- Returns the name and the count of a license. The count of an invalid item is nil.
local function license_count(item)
    return string.match(item, "^%s*([^%s:=*]+)"), tonumber(string.match(item, "[:=*](%d+)%s*$") or "1")
end

-- Returns a list of licenses without ours, and the sum of our counts by name (nil if a count is not valid).
function M.split(licenses, rules)
    local others, counts = {}, {}
    for item in string.gmatch(licenses or "", "[^,;|]+") do
        if is_ours(item, rules) then
            local name, count = license_count(item)
            local sum = count and count + (counts[name] or 0)
            counts[name] = sum and sum >= 1 and sum <= MAX_COUNT and sum or nil
        else
            others[#others + 1] = item
        end
    end
    return others, counts
end

-- Removes our licenses from a request of resources per task, which Slurm would add to the others.
local function strip_tasks(job_desc, rules)
    local request = text_of(job_desc, "tres_per_task")
    if not request or not string.find(request, "license", 1, true) then
        return
    end
    local kept = {}
    for item in string.gmatch(request, "[^,]+") do
        local license = string.match(item, "^%s*license[/:](.*)$")
        if not license or not is_ours(license, rules) then
            kept[#kept + 1] = item
        end
    end
    job_desc.tres_per_task = table.concat(kept, ",")
end

-- Returns the licenses that Slurm must keep when the change sets Licenses=. The record contains the total. Slurm adds
-- licenses per task again if the change sets their request or another number of tasks, but not in other changes.
local function without_tasks(licenses, job_desc, job_rec)
    local per_task, kept = {}, {}
    for item in string.gmatch(text_of(job_rec, "tres_per_task") or "", "[^,]+") do
        local name, count = license_count(string.match(item, "^%s*license[/:](.*)$") or "")
        per_task[name or ""] = count
    end
    local tasks, is_replaced = number(job_desc, "num_tasks"), text_of(job_desc, "tres_per_task")
    for i = #licenses, 1, -1 do -- those of --licenses come first
        local name, count = license_count(licenses[i])
        local each = per_task[name or ""]
        if not each or not is_replaced and (not tasks or count == each * tasks) then
            table.insert(kept, 1, licenses[i])
        else
            per_task[name] = nil
        end
    end
    return kept
end

-- Adds the GPUs of a request such as `gres/gpu:a100:2,gres:gpu:1` to `gpus`, a list of { kind, count }.
local function add_gpus(gpus, request, times)
    for item in string.gmatch(request or "", "[^,]+") do
        local rest = string.match(item, "^%s*gres[:/](.*)$") or item
        local name, tail = string.match(rest, "^%s*(%a+)(.*)$")
        tail = string.gsub(tail or "", "%(.*$", "")
        local count = tonumber(string.match(tail, "[:=](%d+)%s*$") or "1")
        local kind = string.match(tail, "^:([^:=]+)")
        if kind and tonumber(kind) then
            kind = nil
        end
        if name == "gpu" then
            gpus[#gpus + 1] = { kind = kind, count = count * times }
        elseif name == "shard" or name == "mps" then
            gpus[#gpus + 1] = { count = math.min(count, 1) * times }
        end
    end
end

-- Returns the power in each flag of the job. A client may give a flag twice; the largest value counts, because the
-- node may use either.
local function flag_watts(job)
    local largest = {}
    for _, entry in pairs(job.spank_job_env or {}) do
        local name, value = string.match(tostring(entry), "^([^=]+)=(.*)$")
        name = name and string.gsub(name, "^SPANK_", "")
        if name == "ENERGY_CAP" or name == "ENERGY_GPU_CAP" then
            local amount, unit = string.match(value, "^(%d[%d.]*)(%a*)$")
            local factor = ({ [""] = 1, W = 1, kW = 1e3, MW = 1e6 })[unit or "?"]
            local watts = factor and tonumber(amount)
            largest[name] = math.max(largest[name] or 0, watts and watts * factor or math.huge)
        end
    end
    return largest
end

-- Returns the number of hosts in the brackets of a host list, such as `1-3,7`, or nil.
local function range_size(ranges)
    local size = 0
    for item in string.gmatch(ranges, "[^,]+") do
        local low, high = string.match(item, "^(%d+)-(%d+)$")
        local hosts = low and tonumber(high) - tonumber(low) + 1 or string.match(item, "^%d+$") and 1 or 0
        if not (hosts >= 1 and hosts <= MAX_NODES) then
            return nil
        end
        size = size + hosts
    end
    return size
end

-- Returns the number of hosts of a host list such as `a[1-3,7]b[1-2],c`, or nil if it cannot be parsed.
local function host_count(hosts)
    if string.find(hosts, "[%s{}]") then -- Slurm takes blanks as commas, and expands expressions such as switch{s1}
        return nil
    end
    local count, product = 0, 1
    for outside, ranges in string.gmatch(hosts .. "[]", "([^%[]*)%[([^%]]*)%]") do
        local ends = select(2, string.gsub(outside, ",", ""))
        if ends > 0 then
            count, product = count + product + ends - 1, 1
        end
        local size = ranges == "" and 1 or range_size(ranges)
        product = size and product * size or math.huge
    end
    count = count + product
    return count <= MAX_NODES and count or nil
end

-- Returns the number of nodes of a job at most, or nil if its host list cannot be parsed.
local function node_count(job)
    local top, tasks, per_node = number(job, "max_nodes"), number(job, "num_tasks"), number(job, "ntasks_per_node")
    local hosts = host_count(text_of(job, "req_nodes") or "")
    local spread = tasks and per_node and per_node > 0 and math.ceil(tasks / per_node) or 1
    local nodes = math.max(1, number(job, "min_nodes") or 1, top and top < MAX_NODES and top or 1, spread)
    return hosts and math.max(nodes, hosts)
end

local function gpu_count(gpus)
    local count = 0
    for _, one in ipairs(gpus) do
        count = count + one.count
    end
    return count
end

-- Returns the GPUs and the tasks of a job on `nodes` nodes, and the CPUs per GPU.
local function gpus_and_tasks(job, nodes, sockets)
    local tasks = math.max(1, number(job, "num_tasks") or 1, nodes * (number(job, "ntasks_per_node") or 0))
    local gpus, per_gpu = {}, {}
    add_gpus(gpus, text_of(job, "tres_per_job"), 1)
    add_gpus(gpus, text_of(job, "tres_per_node") or text_of(job, "gres"), nodes)
    add_gpus(gpus, text_of(job, "tres_per_socket"), nodes * sockets)
    add_gpus(gpus, text_of(job, "tres_per_task"), tasks)
    local tasks_per_gpu = number(job, "ntasks_per_tres") or 0
    if tasks_per_gpu > 0 and #gpus == 0 then
        gpus[1] = { count = math.ceil(tasks / tasks_per_gpu) } -- Slurm derives the missing one of the two numbers
    end
    tasks = math.max(tasks, gpu_count(gpus) * tasks_per_gpu, nodes * tasks_per_gpu)
    add_gpus(per_gpu, text_of(job, "cpus_per_tres"), 1)
    return gpus, tasks, gpu_count(per_gpu)
end

local function is_exclusive(job)
    return number(job, "shared") == 0 or number(job, "core_spec") or number(job, "thread_spec")
end

-- Returns the maximum power in watts of a node with a cap. `gpus` is the number of the job's GPUs on the node. Devices
-- cannot be limited below their minimum limits. Devices without a power limit draw up to their full power in addition.
local function kept_cap(cap, power, gpus)
    local min_cap, unlimited = power.nodemin or 0, power.nodemin and 0 or power.node or math.huge
    if gpus > 0 and power.gpumin then
        min_cap = min_cap + gpus * power.gpumin
    elseif gpus > 0 then
        unlimited = unlimited + gpus * (power.gpu or math.huge)
    end
    return math.max(cap, min_cap) + unlimited
end

local function may_be_spread(job)
    return job.may_be_spread or math.floor((tonumber(job.bitflags) or 0) / SPREAD_JOB) % 2 == 1
end

-- Returns the maximum number of nodes that Slurm may give to a job that states no maximum itself. The job may draw its
-- cap on each of them. Slurm may place it on one node per task, per GPU, or per CPU if the CPUs do not belong to tasks.
-- A job of whole nodes gets no more nodes than it needs, except with --spread-job.
local function max_nodes(job, power, nodes, tasks, gpus)
    if (power.exclusive or is_exclusive(job)) and not may_be_spread(job) then
        return math.max(nodes, math.ceil(gpu_count(gpus) / math.max(power.gpus or 1, 1)))
    end
    local per_task = math.max(number(job, "cpus_per_task") or 1, 1)
    return math.max(nodes, tasks, gpu_count(gpus), math.ceil((number(job, "min_cpus") or 1) / per_task))
end

-- Returns the power in watts that a job adds in a partition at most.
local function partition_watts(job, power, caps, nodes)
    local gpus, tasks, per_gpu = gpus_and_tasks(job, nodes, power.sockets or 2)
    local cpus = math.max(number(job, "min_cpus") or 1, tasks * (number(job, "cpus_per_task") or 1))
    cpus = math.max(cpus, nodes * (number(job, "pn_min_cpus") or 1), gpu_count(gpus) * per_gpu)
    local watts, top = cpus * (power.cpu or 0), number(job, "max_nodes")
    local is_limited = top and top > 0 and top < MAX_NODES
    if is_limited then
        watts = math.min(watts, nodes * (power.node or watts))
    else
        nodes = math.max(nodes, math.ceil(cpus / math.max(power.cpus or 1, 1)))
    end
    if power.exclusive or is_exclusive(job) or job.may_be_exclusive then
        local whole = nodes * (power.node or 0)
        watts = job.may_be_exclusive and math.max(watts, whole) or whole
        gpus[#gpus + 1] = { count = 0, all = nodes * (power.gpus or 0) }
    end
    -- GPUs without a power limit keep no cap, and no GPU can be limited below its minimum limit.
    local gpu_cap, gpu_watts, all_watts = caps.ENERGY_GPU_CAP or math.huge, 0, 0
    gpu_cap = math.max(gpu_cap, power.gpumin or math.huge)
    for _, one in ipairs(gpus) do
        local each = math.min(one.kind and power.gpu_kinds[one.kind] or power.gpu or 0, gpu_cap)
        gpu_watts, all_watts = gpu_watts + one.count * each, math.max(all_watts, (one.all or 0) * each)
    end
    watts = watts + math.max(gpu_watts, all_watts)
    if caps.ENERGY_CAP then
        local on_node = math.min(all_watts > 0 and math.huge or gpu_count(gpus), power.gpus or 0)
        local capped_nodes = is_limited and nodes or max_nodes(job, power, nodes, tasks, gpus)
        watts = math.min(watts, kept_cap(caps.ENERGY_CAP, power, on_node) * capped_nodes)
    end
    return watts
end

-- Returns the license in watts of a job; the maximum of the site if the number of its nodes is not known.
function M.watts(job, rules)
    local caps, seen, nodes = flag_watts(job), {}, node_count(job)
    local most = nodes and 0 or math.huge
    for partition in string.gmatch(text_of(job, "partition") or rules.default_partition or "*", "[^,]+") do
        local power = rules.power[partition] or rules.power["*"]
        if nodes and power and not seen[power] then
            seen[power] = true
            most = math.max(most, partition_watts(job, power, caps, nodes))
        end
    end
    return math.floor(math.max(1, math.min(math.ceil(most), rules.max, MAX_COUNT)))
end

local function with_ours(others, names, watts)
    local items = {}
    for _, item in ipairs(others) do
        items[#items + 1] = item
    end
    for _, name in ipairs(names) do
        items[#items + 1] = string.format("%s:%d", name, type(watts) == "table" and watts[name] or watts)
    end
    return table.concat(items, ",")
end

-- Sets the licenses of a submitted job. Returns the reason to refuse the job, or nil.
function M.submit(job_desc, text)
    local rules = M.parse(text)
    if not rules then
        return nil
    end
    local problem, licenses = long_text(job_desc), text_of(job_desc, "licenses")
    if problem then
        return problem
    elseif licenses and string.find(licenses, "|", 1, true) then
        return "--licenses: a choice with '|' is not possible under a power budget; request one of them"
    end
    strip_tasks(job_desc, rules)
    local others = M.split(licenses, rules)
    local component = number(job_desc, "het_job_offset")
    local is_leader = not component or component == 0
    -- Slurm accepts licenses on the first component only (23.02 and later). senergyctld sets them for all together.
    local names = is_leader and license_names(job_desc, rules) or {}
    if #names == 0 and #others == (licenses and select(2, string.gsub(licenses, "[^,;]+", "")) or 0) then
        return nil
    end
    job_desc.licenses = with_ours(others, names, M.watts(job_desc, rules))
    local begin = component and rules.delay_s and os.time() + rules.delay_s
    if begin and (number(job_desc, "begin_time") or 0) < begin then
        job_desc.begin_time = begin
    end
    return nil
end

local function is_set(job_desc, name)
    return number(job_desc, name) ~= nil or text_of(job_desc, name) ~= nil
end

local function changes(job_desc, names)
    for _, name in ipairs(names) do
        if is_set(job_desc, name) then
            return true
        end
    end
    return false
end

-- Returns the job after a change. Slurm shows neither `shared` nor the numbers of tasks and of CPUs per task of a job
-- record to Lua. A pending job therefore counts with upper bounds: a task has one CPU at least, and a node has the
-- CPUs of one task at least.
local function changed_job(job_desc, job_rec, is_pending)
    local bounds = { may_be_spread = true }
    if is_pending then
        bounds.num_tasks = job_rec.min_cpus
        bounds.may_be_exclusive = not is_set(job_desc, "shared")
        if changes(job_desc, { "num_tasks", "ntasks_per_node", "ntasks_per_tres" }) then
            bounds.cpus_per_task = job_rec.pn_min_cpus
        end
    end
    return setmetatable({}, {
        __index = function(_, name)
            if is_set(job_desc, name) then
                return job_desc[name]
            elseif bounds[name] ~= nil then
                return bounds[name]
            end
            return job_rec[name]
        end,
    })
end

-- Returns a license after a change of a job's size. It is in proportion to the number of nodes, because senergyctld
-- may have set more than the power table says.
local function scaled(count, job, job_rec, rules)
    local before, after = node_count(job_rec) or 1, node_count(job)
    return after and math.min(math.ceil(count * after / before), math.max(count, rules.max)) or count
end

-- Restores our licenses in a change of a job. Changes by root and by senergyctld are kept.
function M.modify(job_desc, job_rec, uid, text)
    local rules = M.parse(text)
    if not rules or rules.users[uid] then
        return nil
    end
    local problem = long_text(job_desc)
    if problem then
        return problem
    end
    strip_tasks(job_desc, rules)
    local changes_size, requested = changes(job_desc, SIZE_FIELDS), job_desc.licenses
    if type(requested) ~= "string" and not changes_size and not changes(job_desc, { "account", "qos" }) then
        return nil
    end
    if requested and string.find(requested, "|", 1, true) then
        return "Licenses: a choice with '|' is not possible under a power budget; request one of them"
    end
    local is_pending = (number(job_rec, "job_state") or PENDING) % 256 == PENDING
    if not is_pending and type(requested) ~= "string" then
        return nil -- Slurm refuses another license of a running job, after it has made a part of the change
    end
    changes_size = changes_size and is_pending
    local job = changed_job(job_desc, job_rec, is_pending)
    local others = M.split(type(requested) == "string" and requested or job_rec.licenses, rules)
    local _, counts = M.split(job_rec.licenses, rules)
    if type(requested) ~= "string" then
        others = without_tasks(others, job_desc, job_rec)
    end
    local names = license_names(job, rules, counts, not is_set(job_desc, "qos"))
    if not is_pending then
        names = {} -- a running job keeps exactly what it has
        for name in pairs(counts) do
            names[#names + 1] = name
        end
        table.sort(names)
    elseif (number(job_rec, "het_job_offset") or 0) > 0 then
        names = {}
    end
    local before, watts = counts[rules.name], M.watts(job, rules)
    for _, name in ipairs(names) do
        local count = counts[name] or before or watts
        counts[name] = changes_size and math.max(scaled(count, job, job_rec, rules), watts) or count
    end
    if #names > 0 or type(requested) == "string" then
        job_desc.licenses = with_ours(others, names, counts)
    end
    return nil
end

return M

-- Check of the energy flags in slurmctld, for a site's own job_submit.lua. job_submit.lua beside this file shows
-- how to load this module so that slurmctld starts without it.
--
-- The module repeats the checks of energy.so in sbatch, salloc and srun (spank/flags.c), because a client may
-- have no plugin or another one. A job with an invalid value is rejected. An error in this module is logged and
-- the job is accepted. Without a readable policy file only the form of values is checked; senergyd enforces the
-- bounds in any case. Under a power budget, senergy_licenses.lua beside this file sets the licenses of each job.
-- Lua 5.1 to 5.4.

local M = {}

-- File with names and bounds, written by senergyctld. No other user may write there: slurmctld waits for the
-- file.
M.policy_file = "/run/senergyctld/policies"

local FILE_MAX = 64 * 1024
local FIRST_LINE = "senergy-policies 1"
local NAME_MAX, LABEL_MAX = 32, 64
local SHAPES_MAX, KIND_MAX = 8, 32
local SCRIPT_MAX = 16 * 1024 -- maximum bytes of script and arguments to digest: some milliseconds in Lua 5.1
local SHOWN_MAX, LISTED_MAX = 40, 400
local PROFILES_MAX = 255 -- numbers of NVIDIA power profiles
local MICRO = 1000000 -- amounts are compared in whole millionths
local WATTS = {
    unit = "W",
    form = "a power; write watts as 200, 200W or 1.6kW",
    factors = { [""] = 1.0, W = 1.0, kW = 1e3, MW = 1e6 },
}
local MEGAHERTZ = {
    unit = "MHz",
    form = "a frequency; write MHz as 2400, 2400MHz or 2.4GHz",
    factors = { [""] = 1.0, MHz = 1.0, GHz = 1e3 },
}
local PERCENT = {
    unit = "%",
    form = "a percentage; write it as 5, 5% or 2.5%",
    factors = { [""] = 1.0, ["%"] = 1.0 },
    zero = true,
}
local BOUNDS = {
    cap_watts = true,
    gpu_cap_watts = true,
    slowdown_percent = true,
    cpu_freq_mhz = true,
    gpu_clock_mhz = true,
    slack_s = true,
    restart_s = true,
}
local DURATION_UNITS = { s = 1, m = 60, h = 3600, d = 86400 }
local DURATION_MAX_S = 999999999
local SIGNALS_UNITS = { s = 1, m = 60 }
local SIGNALS_MAX_S = 300
local TUNING_MODES = { off = true, advise = true, on = true }

-- Returns the user's text in quotes: non-printable characters escaped, truncated at SHOWN_MAX.
local function shown(text)
    local plain = string.gsub(string.sub(text, 1, SHOWN_MAX + 1), ".", function(character)
        local byte = string.byte(character)
        local printable = byte >= 32 and byte < 127 and character ~= "\\"
        return printable and character or string.format("\\x%02x", byte)
    end)
    if #plain > SHOWN_MAX then
        plain = string.sub(plain, 1, SHOWN_MAX - 3) .. "..."
    end
    return "'" .. plain .. "'"
end

-- Returns the number in millionths and the text after it, or nil if `text` does not begin with a valid number.
local function read_decimal(text, digits, decimals)
    local whole, rest = string.match(text, "^(%d+)(.*)$")
    if not whole or #whole > digits then
        return nil
    end
    local fraction, unit = string.match(rest, "^%.(%d+)(.*)$")
    if fraction and #fraction > decimals or not fraction and string.sub(rest, 1, 1) == "." then
        return nil
    end
    local number = tonumber(whole .. "." .. (fraction or "0"))
    return math.floor(number * MICRO + 0.5), fraction and unit or rest
end

local function parse_number(quantity, text)
    local micros, unit = read_decimal(text, 9, 6)
    local factor = micros and quantity.factors[unit]
    return factor and (micros > 0 or quantity.zero) and micros * factor or nil
end

-- Returns the text of the policy file, or nil and, unless the file is missing, the reason.
local function read_policy_file(path)
    local file, problem, code = io.open(path, "r")
    if not file then
        return nil, code ~= 2 and problem or nil -- 2: no such file, which is not an error
    end
    local text = file:read(FILE_MAX + 1)
    file:close()
    if not text or #text > FILE_MAX then
        return nil, path .. (text and ": longer than 64 KiB" or ": cannot be read")
    end
    if string.find(text, "%z") or string.match(text, "^\n*([^\n]*)") ~= FIRST_LINE then
        return nil, path .. ": does not begin with the line '" .. FIRST_LINE .. "'"
    end
    return text
end

-- Whether a comma-separated list names `user`. An empty list means all users.
local function is_open(users, user)
    local empty = true
    for one in string.gmatch(users, "[^,]+") do
        if one == user then
            return true
        end
        empty = false
    end
    return empty
end

local function is_policy_name(text)
    return #text <= NAME_MAX and string.match(text, "^[a-z][a-z0-9_-]*$") ~= nil
end

-- Parses the policy file into { names = {...}, open = {name = bool}, cap_watts = {low=, high=}, ... }.
-- `open` is for `user`. `measures_only`, `needs_cap` and `tuned` are sets of policy names. If the file lists no
-- policy, `measures_only` and `needs_cap` name the built-in ones. If no policy is tuned, `any_tuned` is nil: the
-- file comes from an older senergyctld. Unknown lines are skipped: they are for newer readers.
local function parse_rules(text, user)
    local rules = { names = {}, open = {}, measures_only = {}, needs_cap = {}, tuned = {} }
    for line in string.gmatch(text or "", "[^\n]+") do
        local words = {}
        for word in string.gmatch(line, "[^ ]+") do
            words[#words + 1] = word
        end
        if words[1] == "policy" and words[2] and is_policy_name(words[2]) then
            local open, options = true, {}
            for i = 3, #words do
                options[words[i]] = true
                local users = string.match(words[i], "^users=(.*)$")
                if users then
                    open = is_open(users, user)
                end
            end
            rules.names[#rules.names + 1] = words[2]
            rules.open[words[2]] = rules.open[words[2]] or open
            rules.measures_only[words[2]] = options["measures-only"]
            rules.needs_cap[words[2]] = options["needs-cap"]
            rules.tuned[words[2]] = options["tuned"]
            rules.any_tuned = rules.any_tuned or options["tuned"]
        elseif words[1] == "power-profiles" then
            rules.power_profiles = words[2]
        elseif BOUNDS[words[1]] then
            local low, after_low = read_decimal(words[2] or "", 12, 6)
            local high, after_high = read_decimal(words[3] or "", 12, 6)
            if low and high and after_low == "" and after_high == "" then
                rules[words[1]] = { low = low, high = high }
            end
        elseif words[1] == "shape-selection-delay" then
            rules.shape_selection_delay_s = tonumber(words[2])
        elseif words[1] == "deferral-delay" then
            rules.deferral_delay_s = tonumber(words[2])
        elseif words[1] == "note-flags" then
            rules.note_flags = true
        elseif words[1] == "note-fingerprint" then
            rules.note_fingerprint = true
        end
    end
    if #rules.names == 0 then
        rules.measures_only.monitor, rules.needs_cap.cap = true, true
    end
    return rules
end

local function plain_number(micros)
    local text = string.gsub(string.format("%.6f", micros / MICRO), "%.?0+$", "")
    return text
end

local function bounds_text(bounds, unit)
    return "allowed: " .. plain_number(bounds.low) .. " to " .. plain_number(bounds.high) .. " " .. unit
end

-- Each check returns nil, or the error message after the flag's name.

local function number_check(quantity, key)
    return function(value, rules)
        local amount, bounds = parse_number(quantity, value), rules[key]
        if not amount then
            local allowed = bounds and " (" .. bounds_text(bounds, quantity.unit) .. ")" or ""
            return shown(value) .. " is not " .. quantity.form .. allowed
        end
        if bounds and (amount < bounds.low or amount > bounds.high) then
            return shown(value) .. " is out of bounds; " .. bounds_text(bounds, quantity.unit)
        end
        return nil
    end
end

local function check_tuning(value)
    return not TUNING_MODES[value] and shown(value) .. " is not a tuning mode; allowed: off, advise, on" or nil
end

-- Whether `name` is PROFILE_ and the number of a profile without a name.
local function is_numbered_profile(name)
    local digits = string.match(name, "^PROFILE_(%d%d?%d?)$")
    return digits and tonumber(digits) < PROFILES_MAX and (digits == "0" or string.sub(digits, 1, 1) ~= "0")
end

-- Checks the name of a power profile. Without a list in the policy file, any word may be a profile.
local function check_profile(value, rules)
    local name = string.upper((string.gsub(value, "%-", "_")))
    local known = is_numbered_profile(name) or not rules.power_profiles
    for one in string.gmatch(rules.power_profiles or "", "[^,]+") do
        known = known or one == name
    end
    if known and #name >= 1 and #name <= LABEL_MAX and string.match(name, "^[A-Z0-9_]+$") then
        return nil
    end
    local list = rules.power_profiles
    local allowed = list and #list < LISTED_MAX and "; allowed: " .. list or ""
    return shown(value) .. " is not a power profile" .. allowed
end

-- Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `wanted`, in lower
-- case, into `name`. A prefix of `name` has distance 1 at most.
local function distance(wanted, name)
    local before, above, row = {}, {}, nil
    for i = 0, #wanted do
        above[i] = i
    end
    for j = 1, #name do
        row = { [0] = j }
        local theirs = string.byte(name, j)
        for i = 1, #wanted do
            local ours = string.byte(wanted, i)
            row[i] = math.min(row[i - 1] + 1, above[i] + 1, above[i - 1] + (ours == theirs and 0 or 1))
            local swapped = i > 1 and j > 1 and ours == string.byte(name, j - 1)
            if swapped and string.byte(wanted, i - 1) == theirs then
                row[i] = math.min(row[i], before[i - 2] + 1)
            end
        end
        before, above = above, row
    end
    local is_start = #wanted >= 2 and string.sub(name, 1, #wanted) == wanted
    return is_start and math.min(above[#wanted], 1) or above[#wanted]
end

-- Returns the open policy that the user most likely meant, with at most a third of its letters wrong, or nil.
local function nearest_policy(value, rules)
    local wanted, nearest, best = string.sub(value, 1, NAME_MAX), nil, math.huge
    wanted = string.gsub(wanted, "[A-Z]", string.lower)
    for _, name in ipairs(rules.names) do
        local longer = math.max(#wanted, #name)
        local edits = rules.open[name] and distance(wanted, name) or math.huge
        if edits < best and edits <= (longer < 6 and 1 or math.floor(longer / 3)) then
            nearest, best = name, edits
        end
    end
    return nearest
end

local function check_policy(value, rules, user)
    local formed = is_policy_name(value)
    if formed and (#rules.names == 0 or rules.open[value]) then
        return nil
    end
    local problem = shown(value) .. " is not a policy name"
    if formed and rules.open[value] == nil then
        problem = "unknown policy " .. shown(value)
    elseif formed then
        problem = shown(value) .. " is not open to user " .. user
    end
    local advice = "; "
    local nearest = nearest_policy(value, rules)
    if nearest and rules.open[value] == nil then
        advice = advice .. "did you mean '" .. nearest .. "'? "
    end
    if #rules.names == 0 then
        local form = "allowed: a to z first, then a to z, 0 to 9, - and _, at most "
        return problem .. advice .. form .. NAME_MAX .. " characters"
    end
    local listed, length = {}, 0
    for _, name in ipairs(rules.names) do
        if rules.open[name] and length < LISTED_MAX then
            listed[#listed + 1] = length + #name > LISTED_MAX and "..." or name
            length = length + #name + 2
        end
    end
    return problem .. advice .. "allowed: " .. (#listed > 0 and table.concat(listed, ", ") or "none")
end

local function label_check(kind)
    return function(value)
        if #value >= 1 and #value <= LABEL_MAX and string.match(value, "^[A-Za-z0-9_.:/+-]+$") then
            return nil
        end
        local form = "; allowed: 1 to " .. LABEL_MAX .. " characters of A-Z a-z 0-9 _ . : / + -"
        return shown(value) .. " is not a " .. kind .. form
    end
end

local function is_shape(text)
    local kind, count = string.match(text, "^gpu:([A-Za-z0-9][A-Za-z0-9_.+-]*):(%d+)$")
    return kind ~= nil and #kind <= KIND_MAX and #count <= 4 and tonumber(count) > 0
end

local function check_shapes(value)
    local shapes, good = 0, #value > 0
    for text in string.gmatch(value .. ",", "([^,]*),") do
        shapes = shapes + 1
        good = good and shapes <= SHAPES_MAX and is_shape(text)
    end
    if good then
        return nil
    end
    local form = " as gpu:KIND:COUNT, as in gpu:a100:4,gpu:h100:2"
    return shown(value) .. " is not a list of shapes; write 1 to " .. SHAPES_MAX .. form
end

-- Returns the seconds in one of M, M:S, H:M:S, D-H, D-H:M and D-H:M:S, as Slurm's --time, or nil.
local function clock_seconds(text)
    local days, clock = string.match(text, "^(%d+)-(.*)$")
    local fields = {}
    for field in string.gmatch((clock or text) .. ":", "([^:]*):") do
        if not string.match(field, "^%d+$") or #field > 9 then
            return nil
        end
        fields[#fields + 1] = tonumber(field)
    end
    if #fields > 3 or days and #days > 9 then
        return nil
    elseif not days and #fields < 3 then
        table.insert(fields, 1, 0) -- M and M:S have no hours
    end
    return (tonumber(days or 0) * 24 + fields[1]) * 3600 + (fields[2] or 0) * 60 + (fields[3] or 0)
end

-- Returns a duration in whole seconds, or nil.
local function duration_seconds(value)
    local micros, unit = read_decimal(value, 9, 6)
    local seconds = micros and DURATION_UNITS[unit] and math.floor(micros * DURATION_UNITS[unit] / MICRO)
    seconds = seconds or clock_seconds(value)
    return seconds and seconds >= 1 and seconds <= DURATION_MAX_S and seconds or nil
end

-- Returns the check of a duration. The bounds are 0 if the site defers or suspends no jobs. The flag then has no
-- effect; energy.so warns of it.
local function duration_check(name)
    return function(value, rules)
        local seconds, bounds = duration_seconds(value), rules[name]
        if not seconds then
            local form = " is not a duration; write it as 30m, 4h or 1d, or as for --time: 4:00:00 or 1-12"
            return shown(value) .. form
        end
        local micros = seconds * MICRO
        if bounds and bounds.high > 0 and (micros < bounds.low or micros > bounds.high) then
            return shown(value) .. " is out of bounds; " .. bounds_text(bounds, "s")
        end
        return nil
    end
end

local function check_signals(value)
    local digits, unit = string.match(value, "^(%d%d?%d?%d?)([sm])$")
    local seconds = digits and tonumber(digits) * SIGNALS_UNITS[unit] or 0
    if value == "off" or seconds >= 1 and seconds <= SIGNALS_MAX_S then
        return nil
    end
    return shown(value) .. " is not an interval; write off, or 1s to 5m as in 10s"
end

local FLAGS = {
    ENERGY_POLICY = { "--energy-policy", check_policy },
    ENERGY_CAP = { "--energy-cap", number_check(WATTS, "cap_watts") },
    ENERGY_GPU_CAP = { "--energy-gpu-cap", number_check(WATTS, "gpu_cap_watts") },
    ENERGY_SLOWDOWN = { "--energy-slowdown", number_check(PERCENT, "slowdown_percent") },
    ENERGY_TUNING = { "--energy-tuning", check_tuning },
    ENERGY_CPU_FREQ = { "--energy-cpu-freq", number_check(MEGAHERTZ, "cpu_freq_mhz") },
    ENERGY_GPU_CLOCK = { "--energy-gpu-clock", number_check(MEGAHERTZ, "gpu_clock_mhz") },
    ENERGY_POWER_PROFILE = { "--energy-power-profile", check_profile },
    ENERGY_MODEL = { "--energy-model", label_check("model name") },
    ENERGY_TAG = { "--energy-tag", label_check("tag") },
    ENERGY_ALTERNATIVES = { "--energy-alternatives", check_shapes },
    ENERGY_SLACK = { "--energy-slack", duration_check("slack_s") },
    ENERGY_CHECKPOINTABLE = { "--energy-checkpointable", duration_check("restart_s") },
    ENERGY_SIGNALS = { "--energy-signals", check_signals },
}

-- Flags that fix a setting, in the order of spank/flags.h.
local LIMITS =
    { "ENERGY_CAP", "ENERGY_GPU_CAP", "ENERGY_CPU_FREQ", "ENERGY_GPU_CLOCK", "ENERGY_POWER_PROFILE" }

-- Returns flag and value of each energy variable. slurmctld adds the prefix SPANK_ to names without it. A client
-- may have added it itself, even more than once; the hooks see the same variable.
local function energy_values(environment)
    local found = {}
    for _, entry in pairs(environment or {}) do
        local name, value = string.match(tostring(entry), "^([^=]+)=(.*)$")
        local plain = name and string.gsub(name, "^SPANK_", "")
        local flag = FLAGS[plain]
        if flag then
            found[#found + 1] = { name = plain, flag = flag, value = value }
        end
    end
    return found
end

-- Returns the error of a combination of individually valid values, or nil: a limit under a policy that only
-- measures, no limit under a policy that needs one, or a flag about tuning under a policy that is not tuned. A
-- limit without a policy is valid.
local function contradiction(values, rules)
    local given, limit, tuning = {}, nil, nil
    for _, item in ipairs(values) do
        given[item.name] = item.value
        tuning = tuning or item.name == "ENERGY_TUNING" and item.value ~= "off" and item.name
    end
    for _, name in ipairs(LIMITS) do
        limit = limit or given[name] and name
    end
    tuning = given.ENERGY_SLOWDOWN and "ENERGY_SLOWDOWN" or tuning
    for _, item in ipairs(values) do
        local policy = item.name == "ENERGY_POLICY" and item.value
        local other = policy and (rules.measures_only[policy] or rules.needs_cap[policy] or rules.any_tuned)
        if policy and limit and rules.measures_only[policy] then
            local advice = "' changes nothing; choose another policy or leave the flag out"
            return FLAGS[limit][1] .. ": policy '" .. policy .. advice
        elseif policy and not limit and rules.needs_cap[policy] then
            local flags = "--energy-cap, --energy-gpu-cap, --energy-cpu-freq, --energy-gpu-clock or "
            return "--energy-policy=" .. policy .. " needs " .. flags .. "--energy-power-profile"
        elseif tuning and other and not rules.tuned[policy] then
            local advice = "' is not tuned; choose edp, ed2p or energy, or leave the flag out"
            return FLAGS[tuning][1] .. ": policy '" .. policy .. advice
        end
    end
    return nil
end

-- Returns the one-line reason to reject the job, or nil; the job's values, if it has any; and the rules.
local function examine(job_desc)
    local values = energy_values(job_desc.spank_job_env)
    if #values == 0 and not job_desc.script then
        return nil
    end
    local text, unusable = read_policy_file(M.policy_file)
    if unusable and #values > 0 then
        slurm.log_error("%s", "senergy_submit: " .. unusable .. ": only the form of values is checked")
    end
    local user = job_desc.user_name or "" -- the job's owner, also if root submits for another user
    local rules, given = parse_rules(text, user), {}
    for _, item in ipairs(values) do
        local problem = item.flag[2](item.value, rules, user)
        -- Of two values, the node could use one, and the prediction of the job the other one.
        if not problem and (given[item.name] or item.value) ~= item.value then
            problem = "given twice, as " .. shown(given[item.name]) .. " and " .. shown(item.value)
        end
        if problem then
            return item.flag[1] .. ": " .. problem
        end
        given[item.name] = item.value
    end
    return contradiction(values, rules), values, rules
end

-- Returns the one-line reason to reject the job, or nil.
function M.problem(job_desc)
    return (examine(job_desc))
end

-- Table of the exclusive or of two numbers from 0 to 15, because Lua 5.1 has no operator for it.
local XOR = {}
for a = 0, 15 do
    for b = 0, 15 do
        local result, bit, x, y = 0, 1, a, b
        for _ = 1, 4 do
            result = result + ((x % 2 ~= y % 2) and bit or 0)
            x, y, bit = math.floor(x / 2), math.floor(y / 2), bit * 2
        end
        XOR[a * 16 + b] = result
    end
end

-- Updates a 64-bit FNV-1a digest, given as its lower and upper 32 bits. The prime is 2^40 + 435.
local function digest(text, low, high)
    local floor, byte_at, two24, two32 = math.floor, string.byte, 2 ^ 24, 2 ^ 32
    for i = 1, #text do
        local byte, old = byte_at(text, i), low % 256
        local upper = XOR[floor(old / 16) * 16 + floor(byte / 16)]
        low = low - old + upper * 16 + XOR[old % 16 * 16 + byte % 16]
        local product = low * 435
        high = (high * 435 + floor(product / two32) + (low % two24) * 256) % two32
        low = product % two32
    end
    return low, high
end

-- Returns the digest of a batch script without its #SBATCH lines and of its arguments, as energy.so computes it
-- on the node (spank/fingerprint.c). Returns nil for other jobs and for scripts longer than SCRIPT_MAX.
local function fingerprint(job_desc)
    local script, count = job_desc.script, math.max((tonumber(job_desc.argc) or 1) - 1, 0)
    if type(script) ~= "string" or #script + count > SCRIPT_MAX then
        return nil -- each argument adds one byte at least
    end
    -- Slurm builds the table of all arguments again for each access to `argv`.
    local argv, arguments, length = count > 0 and job_desc.argv, {}, #script
    for i = 1, count do
        arguments[i] = "\0" .. tostring(argv[i])
        length = length + #arguments[i]
        if length > SCRIPT_MAX then
            return nil
        end
    end
    local rest = table.concat(arguments)
    local low, high = 0x84222325, 0xcbf29ce4
    for line in string.gmatch(script, "[^\n]*\n?") do
        if string.sub(line, 1, 7) ~= "#SBATCH" then
            low, high = digest(line, low, high)
        end
    end
    low, high = digest(rest, low, high)
    return string.format("%08x%08x", high, low)
end

-- Appends words to AdminComment, from which squeue and slurmctld's plugin pass them to senergyctld. Users cannot
-- write there. Text of a site's own job_submit.lua is kept before them.
local function append_admin_comment(job_desc, words)
    local before = job_desc.admin_comment
    local own = "energy-flags: " .. table.concat(words, " ")
    job_desc.admin_comment = before and before ~= "" and before .. "; " .. own or own
end

local function flag_words(values)
    local words, seen = {}, {}
    for _, item in ipairs(values) do
        if not seen[item.name] and string.match(item.value, "^[%w_.:,/+%%-]+$") then
            words[#words + 1] = item.name .. "=" .. item.value
            seen[item.name] = true
        end
    end
    table.sort(words)
    return words
end

-- Delays the begin time of a job that offers several shapes, so that senergyctld can select one before Slurm
-- starts the job. Job arrays keep their requested shape, and srun --immediate cannot wait.
local function delay_for_shape_selection(job_desc, values, seconds)
    local offers = false
    for _, item in ipairs(values) do
        offers = offers or item.name == "ENERGY_ALTERNATIVES"
    end
    if not offers or (job_desc.array_inx or "") ~= "" or (job_desc.immediate or 0) ~= 0 then
        return
    end
    local begin = os.time() + seconds
    if (job_desc.begin_time or 0) < begin then
        job_desc.begin_time = begin
    end
end

-- Returns the slack of a job in seconds; 0: it has none. slurmctld does not show the deadline of a job to Lua.
local function deferrable_seconds(values)
    local slack = 0
    for _, item in ipairs(values) do
        slack = item.name == "ENERGY_SLACK" and duration_seconds(item.value) or slack
    end
    return slack
end

-- Delays the begin time of a deferrable job, so that senergyctld can plan its start before Slurm starts it.
local function delay_for_deferral(job_desc, values, rules)
    local seconds = math.min(rules.deferral_delay_s, deferrable_seconds(values) / 2)
    local begin = os.time() + math.floor(seconds)
    if seconds >= 1 and (job_desc.immediate or 0) == 0 and (job_desc.begin_time or 0) < begin then
        job_desc.begin_time = begin
    end
end

-- Whether a request such as `gres/gpu:a100:2,license:1` or `gres:shard:4` includes GPUs or shares of GPUs.
local function names_gpus(request)
    for item in string.gmatch(tostring(request or ""), "[^,]+") do
        local name, rest = string.match(item, "^%s*([a-z]+)(.*)$")
        if name == "gres" then
            name, rest = string.match(rest, "^[:/]([a-z]+)(.*)$")
        end
        local count = rest and string.match(rest, "[:=](%d+)[KMGT]?%s*$")
        if (name == "gpu" or name == "shard" or name == "mps") and tonumber(count or 1) > 0 then
            return true
        end
    end
    return false
end

local GPU_FLAGS = { "ENERGY_GPU_CAP", "ENERGY_GPU_CLOCK", "ENERGY_POWER_PROFILE" }

-- Warns the user of a setting of GPUs if the job requests no GPU. The job is not rejected: in a partition that
-- allocates whole nodes it gets their GPUs without a request, and not every release lets Lua look up partitions.
local function warn_of_missing_gpus(job_desc, values)
    local given, flag = {}, nil
    for _, item in ipairs(values) do
        given[item.name] = true
    end
    for _, name in ipairs(GPU_FLAGS) do
        flag = flag or given[name] and FLAGS[name][1]
    end
    if not flag or given.ENERGY_ALTERNATIVES or job_desc.shared == 0 then -- 0: --exclusive, all GPUs of the node
        return
    end
    for _, key in ipairs({ "gres", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
        if names_gpus(job_desc[key]) then
            return
        end
    end
    local advice = ": the job asks for no GPU, so the flag has no effect: ask for GPUs, or leave it out"
    slurm.log_user("%s", flag .. advice)
end

local function prepare(job_desc, values, rules)
    warn_of_missing_gpus(job_desc, values)
    local words = rules.note_flags and flag_words(values) or {}
    local script = rules.note_fingerprint and fingerprint(job_desc)
    if script then
        words[#words + 1] = "ENERGY_FINGERPRINT=" .. script
    end
    if #words > 0 then
        append_admin_comment(job_desc, words)
    end
    if rules.shape_selection_delay_s then
        delay_for_shape_selection(job_desc, values, rules.shape_selection_delay_s)
    end
    if rules.deferral_delay_s then
        delay_for_deferral(job_desc, values, rules)
    end
end

local has_licenses, licenses = pcall(require, "senergy_licenses")
if not has_licenses or type(licenses) ~= "table" then
    local reason = string.match(tostring(licenses), "^[^\n]*")
    slurm.log_error("%s", "senergy_submit: power budgets set no licenses: senergy_licenses: " .. reason)
    licenses = nil
end

-- Sets the licenses of the job under a power budget. Returns the reason to reject the job or change, or nil.
local function set_licenses(job_desc, job_rec, uid)
    local text = licenses and read_policy_file(M.policy_file)
    if not text then
        return nil
    end
    if job_rec then
        return licenses.modify(job_desc, job_rec, uid, text)
    end
    return licenses.submit(job_desc, text)
end

-- For slurm_job_modify: returns slurm.SUCCESS, or slurm.ERROR after a message to the user.
function M.modify(job_desc, job_rec, modify_uid)
    local worked, problem = pcall(set_licenses, job_desc, job_rec, modify_uid)
    if not worked then
        local whose = "change by uid " .. tostring(modify_uid) .. " let through"
        slurm.log_error("%s", "senergy_submit: internal error: " .. tostring(problem) .. ": " .. whose)
    elseif problem then
        slurm.log_user("%s", problem)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

-- For slurm_job_submit: returns slurm.SUCCESS, or slurm.ERROR after a message to the user.
function M.check(job_desc, submit_uid)
    local worked, problem, values, rules = pcall(examine, job_desc)
    if worked and not problem and values then
        worked, problem = pcall(prepare, job_desc, values, rules)
    end
    if worked and not problem then
        worked, problem = pcall(set_licenses, job_desc)
    end
    if not worked then
        local whose = "job of uid " .. tostring(submit_uid) .. " let through"
        slurm.log_error("%s", "senergy_submit: internal error: " .. tostring(problem) .. ": " .. whose)
        return slurm.SUCCESS
    end
    if problem then
        slurm.log_user("%s", problem)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

return M

-- What the functions of the library take. A tenant can call them with any arguments, so no number exceeds those of a sidecar's
-- calls, and no call takes more memory or time than the largest one of a sidecar. A comparison with something other than a
-- number is an error, which also ends the call before anything is written.
-- Uses the constants MAX_CALLERS, MAX_COUNT, MAX_COUNTERS, MAX_PERIOD, MAX_RATES and MAX_RECORDS, which Rust defines before this
-- part. Defines `refuse_plain`, `refuse_runs` and `refuse_general`, which return the reason if a call is not taken. Their
-- arguments are described by the heads of the scripts.

local REFUSED = 'ERR an argument is out of range'

-- Reports whether a rate is one that the scripts for plain checks and for runs can decide.
local function is_plain(requests, tag)
  local kind = tag % 8192
  return (kind == 520 or kind == 1024) and requests <= MAX_COUNT and tag >= 8192 and tag < (MAX_PERIOD + 1) * 8192
end

local function refuse_plain(keys, arguments)
  local checks = 0
  for at = 1, #arguments, 26 do
    local _, requests, tag, callers, count = struct.unpack('<I6I6I6I2I2I4', arguments, at)
    if not is_plain(requests, tag) or callers > MAX_CALLERS then return REFUSED end
    checks = checks + count
  end
  if checks ~= #keys then return 'ERR not one key for each check' end
end

local function refuse_runs(keys, arguments)
  local at, counters = 1, 0
  while at <= #arguments do
    local _, callers, checks, rates, shared, next = struct.unpack('<I6I2I2BB', arguments, at)
    if callers > MAX_CALLERS or rates < 1 or rates > MAX_RATES or shared >= MAX_COUNTERS then return REFUSED end
    for _ = 1, rates + shared do
      local requests, tag
      requests, tag, next = struct.unpack('<I6I6', arguments, next)
      if not is_plain(requests, tag) then return REFUSED end
    end
    at = next + 4 * (shared + 1)
    counters = counters + shared + checks
  end
  if counters ~= #keys then return 'ERR not one key for each counter' end
end

-- The largest number of requests of a layout of records, and the least and the greatest value of each parameter of a rate.
-- Instants are at most 2^51 microseconds apart, or a sum of them would not be exact.
local FURTHEST = 2251799813685248
local window = {MAX_COUNT, 0, MAX_PERIOD, 0, MAX_COUNT, 0, MAX_PERIOD, 0, 1, 0, 0}
local bounds_of = {
  [512] = window, [1024] = window, [1536] = window, [2048] = window,
  [2560] = {10000, 0, MAX_PERIOD, 0, 0, 0, 0, 0, 1, 0, 0},
  [3072] = {MAX_COUNT, 0, FURTHEST, 0, MAX_COUNT, 0, FURTHEST, 0, MAX_COUNT, 0, FURTHEST},
  [3584] = {MAX_COUNT, 1, 3600000000, 2, 100, 0, FURTHEST, 0, 0, 0, 0},
  [4608] = {1000000, 0, 281474976710655, 0, MAX_PERIOD, 0, 0, 0, 0, 0, 0},
  [5120] = {1000, 1, MAX_PERIOD, 1, MAX_PERIOD, 0, 0, 0, 0, 0, 0},
  [5632] = {MAX_COUNT, 1, 281474976710655, 1, MAX_PERIOD, 0, 0, 0, 0, 0, 0},
}

-- Returns the bounds of a rate, or nothing if it cannot be one.
local function bounds_for(requests, tag)
  local kind = tag % 8192
  local period, bounds = (tag - kind) / 8192, bounds_of[kind - kind % 512]
  if not bounds or kind % 8 > 0 or not (period >= 1 and period <= MAX_PERIOD and requests >= 0 and requests <= bounds[1]) then
    return nil
  end
  local slots = kind < 1024 and (kind - 512) / 8 or 1
  return slots >= 1 and slots <= 60 and period % slots == 0 and bounds
end

local function refuse_general(keys, a)
  local size, limits, p = #a, a[2] or 0, 3
  if not (a[1] >= 0 and a[1] <= 9007199254740992 and limits >= 0) then return REFUSED end
  -- The first rate of each limit, and the bounds of all rates.
  local first_rate, bounds, rates = {1}, {}, 0
  for limit = 1, limits do
    local count, most, grid = a[p], a[p + 1], a[p + 2]
    if not (count >= 1 and count <= MAX_RATES and most >= 0 and most <= 1073741824 and grid >= 1 and grid <= 2 * MAX_PERIOD) then
      return REFUSED
    end
    p = p + 3
    for rate = rates + 1, rates + count do
      bounds[rate] = bounds_for(a[p], a[p + 1])
      if not bounds[rate] then return REFUSED end
      p = p + 2
    end
    rates = rates + count
    first_rate[limit + 1] = rates + 1
  end
  local records = 0
  while p <= size do
    local operation, counters, correction_end = a[p], 1, nil
    if operation == 6 then
      local id, length = a[p + 2], a[p + 3]
      records = records + 1
      if not (keys[a[p + 1]] and id >= 1 and id <= 281474976710655 and length >= 1) then return REFUSED end
      p = p + 4
      operation, correction_end = a[p], p + length
      -- A correction is a settlement or a charge of one counter.
      if not (operation == 0 or operation == 2 or operation == 3 and a[p + 1] == 1) then return REFUSED end
    end
    local is_check = operation == 1 or operation == 3
    if is_check then
      counters = a[p + 1]
      local callers = a[p + 2]
      if not (counters >= 1 and counters <= MAX_COUNTERS and callers >= 0 and callers <= MAX_CALLERS) then return REFUSED end
      p = p + 3
    elseif operation == 0 or operation == 2 then
      local charged, more, less, least = a[p + 2], a[p + 3], a[p + 4], a[p + 5]
      if not (charged >= 0 and charged <= 2 * FURTHEST and more >= 0 and more <= MAX_COUNT and less >= 0 and less <= MAX_COUNT
        and least >= 0 and least <= 1000000) then
        return REFUSED
      end
      p = p + 1
    elseif operation == 4 then
      counters = 0
      local limit = a[p + 2]
      records = records + 1
      if not keys[a[p + 1]] or not first_rate[limit] or not first_rate[limit + 1] or records > MAX_RECORDS then return REFUSED end
      p = p + 3
    elseif operation == 5 then
      counters = 0
      local id = a[p + 2]
      records = records + 1
      if not (keys[a[p + 1]] and id >= 0 and id <= 281474976710655 and records <= MAX_RECORDS) then return REFUSED end
      p = p + 3
    else
      return REFUSED
    end
    for _ = 1, counters do
      local key, limit
      if is_check then
        local cost = a[p + 1]
        key, limit = a[p], a[p + 2]
        if not (cost >= 0 and cost <= MAX_COUNT + 1) then return REFUSED end
        p = p + 3
      else
        key, limit = a[p], a[p + 5]
        p = p + 6
      end
      if not keys[key] or not first_rate[limit + 1] then return REFUSED end
      for rate = first_rate[limit], first_rate[limit + 1] - 1 do
        local b = bounds[rate]
        local first, second, third, fourth, fifth = a[p], a[p + 1], a[p + 2], a[p + 3], a[p + 4]
        if not (first >= b[2] and first <= b[3] and second >= b[4] and second <= b[5] and third >= b[6] and third <= b[7]
          and fourth >= b[8] and fourth <= b[9] and fifth >= b[10] and fifth <= b[11]) then
          return REFUSED
        end
        p = p + 5
        records = records + 1
      end
      if records > MAX_RECORDS then return REFUSED end
    end
    if correction_end and p ~= correction_end then return REFUSED end
  end
  -- A probe has a deadline only.
  if size > 1 and p ~= size + 1 then return REFUSED end
end

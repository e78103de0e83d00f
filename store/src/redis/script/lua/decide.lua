-- The decision of a check: all its counters have room for the cost, or none is charged.
-- Uses the codec and the rules of all algorithms. Defines `decide`.

-- Returns the rules of a kind of records. They are made when the first rate of an algorithm is met, because each function costs
-- the call time.
local made = {}
local function rules(kind)
  local make = makers[kind] or window_rules
  if not made[make] then made[make] = make() end
  return made[make]
end

-- Copies a record that no rate of the limit uses, unless it has expired: while an edit is rolled out, old and new rates are both
-- in use. A record far ahead of the clock is corrected as its own rate would do; otherwise the key would live for as long.
local function carry(i)
  local tag, slot, current, previous = record[i], record[i + 1], record[i + 2], record[i + 3]
  if ends_of(i, tag, slot) <= now then return false end
  local kind = tag % 8192
  local period = (tag - kind) / 8192
  local tail, since, last = tails[i], sinces[i], lasts[i]
  if kind < FIRST_REQUEST then
    local slots, length = slots_of(kind, period)
    if slot > (now - now % length) / length + (slots > 1 and slots or 1) then
      local _
      _, slot, current, previous, tail, since, last = roll_window(i, kind, period, now)
      if since == 0 then since, last = nil, nil end
    end
  elseif kind < LOG then
    if slot > now + period then
      slot = now
      if since then since, last = since < now and since or now, last < now and last or now end
    end
  elseif kind < BUCKET then
    if slot > now + period then slot, tail = now, rep(pack('<I6', now), #tail / 6) end
  elseif slot > now + 2 * MAX_PERIOD then
    slot = now + 2 * MAX_PERIOD
  end
  append(tag, slot, current, previous, tail, since, last)
  return true
end

-- Replaces the records of a key by those of a limit, whose states begin after m. Up to 8 other records stay behind them.
local function replace(key, limit, m)
  local from, to, base, left = first_record[key], last_record[key], records + 1, 8
  for r = first_rate[limit], first_rate[limit + 1] - 1 do
    m = m + 1
    local kind, since, tail = kind_of[r], nil, nil
    if kind < LOG and since_of[m] > 0 then since = since_of[m] end
    if kind < BUCKET or kind >= CONCURRENCY then tail = tail_of[m] end
    append(tag_of[r], slot_of[m], current_of[m], previous_of[m], tail, since, since and last_of[m])
  end
  local own = records - 3
  for i = from, to, 4 do
    if left > 0 and not find(record[i], base, own) and carry(i) then left = left - 1 end
  end
  first_record[key], last_record[key], changed[key] = base, records - 3, true
end

-- Returns the index of the overflow counter of a key's partition. It is not among the keys of the call, but in the same hash
-- slot, and the user who may use the one may use the other.
local overflows = {}
local function overflow_of(key)
  local name = string.match(keys[key], '^.*:') .. 'overflow'
  if not overflows[name] then
    keys[#keys + 1] = name
    overflows[name] = #keys
  end
  return overflows[name]
end

-- Decides the check whose number of counters stands at p, or charges it whether or not there is room. Returns the position
-- after it, or an error.
local function decide(p, operation, is_charge)
  local counters, callers, begin, bad, m, shared = a[p], a[p + 1], p + 2, nil, 0, nil
  local admitted = callers
  p = begin
  for c = 1, counters do
    local key, cost, limit = a[p], a[p + 1], a[p + 2]
    p = p + 3
    local from = first_record[key] or load(key)
    if type(from) == 'table' then return from end
    if most_of[limit] > 0 and from > 0 then
      grid_of_key[key] = grid_of[limit]
      if last_record[key] < from and registry_of(key).keys >= most_of[limit] then
        notes[#notes + 1] = 32 * operation + c - 1
        notes[#notes + 1] = 0
        key = overflow_of(key)
        a[p - 3] = key
        shared = shared or {}
        shared[c] = true
        from = first_record[key] or load(key)
        if type(from) == 'table' then return from end
      end
    end
    local own = callers
    for r = first_rate[limit], first_rate[limit + 1] - 1 do
      m = m + 1
      if from < 0 then
        bad = bad or from
      else
        local i = find(tag_of[r], from, last_record[key])
        own = rules_of[r].room(i, key, r, p, cost, own, m)
      end
      p = p + 5
    end
    if own < admitted then admitted = own end
  end
  if is_charge then admitted = callers end
  out[o] = bad or admitted
  o = o + 1
  if bad then return p end

  p, m = begin, 0
  for c = 1, counters do
    local key, cost, limit = a[p], a[p + 1], a[p + 2]
    local first, write = m, admitted * cost > 0
    p = p + 3
    for r = first_rate[limit], first_rate[limit + 1] - 1 do
      m = m + 1
      -- A window or a log that counts denied requests is written by them too.
      if admitted < callers and kind_of[r] < BUCKET and a[p + 3] == 1 then write = true end
      -- So is a block by a denial that counts. Clients that share the overflow counter must not block each other.
      if not (shared and shared[c] and kind_of[r] == BLOCK) and rules_of[r].charge(r, p, cost, admitted, callers, m) then
        write = true
      end
      rules_of[r].reply(r, p, cost, m)
      p = p + 5
    end
    if write then
      if last_record[key] < first_record[key] and not (shared and shared[c]) then
        notes[#notes + 1] = 32 * operation + c - 1
        notes[#notes + 1] = 4294967296
        if grid_of_key[key] then
          local registry = registry_of(key)
          registry.keys, registry.new = registry.keys + 1, registry.new + 1
          notes[#notes] = 4294967296 + registry.keys
        end
      end
      replace(key, limit, first)
    end
  end
  return p
end


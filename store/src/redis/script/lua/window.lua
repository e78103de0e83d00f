-- Fixed and sliding windows, with and without sub-windows, hard and soft.
-- Uses the codec. Defines `admit` and `rebase`, which other algorithms use too, and the rules of windows.

-- Returns how many of the callers find room for their cost.
local function admit(room, cost, callers)
  if cost == 0 then return room < 1 and 0 or callers end
  if cost * callers <= room then return callers end
  return room < cost and 0 or (room - room % cost) / cost
end

-- Corrects a record that is ahead of the clock. It is written even if the check is denied: otherwise each denial would correct
-- it again, and it would deny until the clock has caught up. Returns whether the record was ahead.
local function rebase(i, key, slot, current, previous)
  if not i or slot >= record[i + 1] then return false end
  record[i + 1], record[i + 2], record[i + 3] = slot, current, previous
  changed[key] = true
  return true
end

-- Returns ceil(count * rest / length), for rest <= length.
local function share(count, rest, length)
  local x = count * rest
  if x <= 9007199254740992 then
    local over = x % length
    return over > 0 and (x - over) / length + 1 or x / length
  end
  -- With count = q * length + r it is q * rest + ceil(r * rest / length), where rest is split in high * 2^18 + low. Periods are
  -- below 2^35, so r * high is below 2^52, and a remainder times 2^18 is below 31622400000 * 2^18 < 2^53.
  local r, low = count % length, rest % 262144
  local whole = (count - r) / length * rest
  x = r * ((rest - low) / 262144)
  local left = x % length
  whole = whole + (x - left) / length * 262144
  x = left * 262144
  left = x % length
  whole = whole + (x - left) / length
  x = r * low
  local left2 = x % length
  whole = whole + (x - left2) / length
  left = left + left2
  return left > length and whole + 2 or left > 0 and whole + 1 or whole
end

-- Rolls the record at i to the instant t in milliseconds. Returns the instant that counts, the record's new state, and the
-- number and length of its slots.
local function roll_window(i, kind, period, t)
  local slots, length = slots_of(kind, period)
  local slot, current, previous, tail, since, last = nil, 0, 0, nil, 0, 0
  local stored
  if i then stored, since, last = record[i + 1], sinces[i] or 0, lasts[i] or 0 end
  if kind == FIRST_REQUEST then
    slot = t
    if stored then
      current = record[i + 2]
      if stored <= t then
        if t - stored >= period then current = 0 end
        if current > 0 then slot = stored end
      elseif stored - t <= period then
        slot, t = stored, stored
      else
        if since > t then since = t end
        if last > t then last = t end
      end
    end
    return t, slot, current, previous, tail, since, last, slots, length
  end
  slot = (t - t % length) / length
  if stored then
    if stored >= slot and stored - slot <= (slots > 1 and slots or 1) then
      -- The clock has stepped back by a few slots: the record's slot is continued from its begin.
      if stored > slot then slot, t = stored, stored * length end
      current, previous, tail = record[i + 2], record[i + 3], tails[i]
    elseif stored < slot then
      local by = slot - stored
      if by <= slots then
        local c, p, old = record[i + 2], record[i + 3], tails[i]
        if by == 1 then previous = c end
        if slots > 1 then
          tail = {}
          for k = 2, slots do
            local o = k - by
            tail[k - 1] = o < 0 and 0 or o == 0 and c or o == 1 and p or old[o - 1]
          end
        end
      end
    else
      -- Far ahead: all counts move into the current slot.
      current = record[i + 2] + record[i + 3]
      local old = tails[i]
      for k = 1, old and #old or 0 do current = current + old[k] end
      if current > MAX_COUNT then current = MAX_COUNT end
      if since > t then since = t end
      if last > t then last = t end
    end
  end
  if slots > 1 and not tail then
    tail = {}
    for k = 1, slots - 1 do tail[k] = 0 end
  end
  return t, slot, current, previous, tail, since, last, slots, length
end

local function window_rules()
  -- Returns the counts that the records of other windows on the clock prove for a rate without a record, by the age of the slot:
  -- the largest count that one of the records shows within that slot. Returns nil if they prove nothing.
  local function proven(tag, from, to)
    local kind = tag % 8192
    if kind > ONE_WINDOW or to < from then return nil end
    local slots, length = slots_of(kind, (tag - kind) / 8192)
    local newest, most = (now - now % length) / length, nil
    for i = from, to, 4 do
      local kind = record[i] % 8192
      if kind <= ONE_WINDOW then
        local kept, own = slots_of(kind, (record[i] - kind) / 8192)
        local slot, last, all = record[i + 1], (now - now % own) / own, nil
        if slot > last + (kept > 1 and kept or 1) then
          -- Its own rate would move all counts into the current slot.
          all = record[i + 2] + record[i + 3]
          for k = 2, kept do all = all + tails[i][k - 1] end
          slot, kept = last, 0
        end
        if slot <= last and slot >= kept then
          local sums = {}
          for k = 0, kept do
            local count = all or k == 0 and record[i + 2] or k == 1 and record[i + 3] or tails[i][k - 1]
            if count > MAX_COUNT then count = MAX_COUNT end
            local begin = (slot - k) * own
            local at = newest - (begin - begin % length) / length
            if count > 0 and at >= 0 and at <= slots and (at == 0 or begin + own <= (newest - at + 1) * length) then
              sums[at] = (sums[at] or 0) + count
            end
          end
          for at, sum in pairs(sums) do
            most = most or {}
            if sum > MAX_COUNT then sum = MAX_COUNT end
            if sum > (most[at] or 0) then most[at] = sum end
          end
        end
      end
    end
    return most
  end

  -- Parameters: the phase of a spread window, or 1 if a sliding one is guaranteed; the soft ceiling; how long it may be used; 1 if
  -- denied requests count.
  local function room(i, key, r, p, cost, callers, m)
    local requests, kind, period = requests_of[r], kind_of[r], period_of[r]
    local first, ceiling, extra = a[p], a[p + 1], a[p + 2]
    local t, slot, current, previous, tail, since, last, slots, length =
      roll_window(i, kind, period, kind == SPREAD and now + first or now)
    local begun = not i and proven(tag_of[r], first_record[key], last_record[key])
    if begun then
      current, previous = begun[0] or 0, begun[1] or 0
      for k = 2, slots do tail[k - 1] = begun[k] or 0 end
    end
    local used, oldest = current, previous
    if slots > 1 then
      used, oldest = used + previous, tail[slots - 1]
      for k = 1, slots - 2 do used = used + tail[k] end
    end
    if slots > 0 and oldest > 0 then
      used = used + (first == 1 and oldest or share(oldest, (slot + 1) * length - t, length))
    end
    local free = requests - used
    if extra > 0 and (since == 0 or t < since + extra or t >= last + period) then free = ceiling - used end
    if rebase(i, key, slot, current, previous) then
      tails[i] = tail
      if since > 0 then sinces[i], lasts[i] = since, last end
    end
    slot_of[m], current_of[m], previous_of[m], tail_of[m], since_of[m], last_of[m], instant_of[m], used_of[m] =
      slot, current, previous, tail, since, last, t, used
    return admit(free, cost, callers)
  end

  local function charge(r, p, cost, admitted, callers, m)
    local add, kind, period = admitted * cost, kind_of[r], period_of[r]
    if a[p + 3] == 1 then
      -- A denied request counts no more than the rate admits.
      local counted = cost < 1 and 1 or cost
      if counted > requests_of[r] then counted = requests_of[r] < 1 and 1 or requests_of[r] end
      add = add + (callers - admitted) * counted
    end
    if add == 0 then return end
    if add > MAX_COUNT - current_of[m] then add = MAX_COUNT - current_of[m] end
    current_of[m] = current_of[m] + add
    if a[p + 2] > 0 and used_of[m] + add > requests_of[r] then
      local t, _, length = instant_of[m], slots_of(kind, period)
      if since_of[m] == 0 or since_of[m] > t or t >= last_of[m] + period then since_of[m] = t end
      last_of[m] = kind == FIRST_REQUEST and slot_of[m] + period or (slot_of[m] + 1) * length
    end
  end

  local function reply(_, p, _, m)
    local tail = tail_of[m]
    out[o], out[o + 1] = slot_of[m], current_of[m]
    out[o + 2] = tail and pack('<' .. rep('I6', #tail + 1), previous_of[m], spread(tail)) or previous_of[m]
    o = o + 3
    if a[p + 2] > 0 then
      out[o], out[o + 1] = since_of[m], last_of[m]
      o = o + 2
    end
  end

  local function settle(i, r, p, charged, more, less)
    local kind, period = kind_of[r], period_of[r]
    local phase = kind == SPREAD and a[p] or 0
    local _, slot, current, previous, tail, since, last, slots, length = roll_window(i, kind, period, now + phase)
    local function corrected(count)
      count = count + more - less
      return count < 0 and 0 or count > MAX_COUNT and MAX_COUNT or count
    end
    local at = (charged - charged % 1000) / 1000 + phase
    local age = slot - (at - at % length) / length
    if kind == FIRST_REQUEST then age = at >= slot and 0 or slots + 1 end
    if age <= 0 then current = corrected(current)
    elseif age == 1 and slots > 0 then previous = corrected(previous)
    elseif age <= slots then
      local copy = {spread(tail)}
      copy[age - 1] = corrected(copy[age - 1])
      tail = copy
    end
    record[i + 1], record[i + 2], record[i + 3], tails[i] = slot, current, previous, tail
    if since > 0 then sinces[i], lasts[i] = since, last end
  end

  return {room = room, charge = charge, reply = reply, settle = settle}
end


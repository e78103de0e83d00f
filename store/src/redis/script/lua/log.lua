-- The sliding window log: the newest admitted instants, newest first, in 6 bytes each.
-- Uses the codec, `admit` and `rebase`. Defines the rules of logs.

local function log_rules()
  -- Rolls a log to now. Returns the instant that counts, the bytes of the instants that still count, and their number.
  local function roll(i, period)
    if not i then return now, '', 0 end
    local newest, instants, t = record[i + 1], tails[i], now
    if newest > now + period then
      instants = rep(pack('<I6', now), #instants / 6)
    elseif newest > now then
      t = newest
    end
    local low, high = 0, #instants / 6
    while low < high do
      local middle = (low + high - (low + high) % 2) / 2
      if unpack('<I6', instants, middle * 6 + 1) + period > t then low = middle + 1 else high = middle end
    end
    return t, sub(instants, 1, low * 6), low
  end

  -- Parameters: the minimum interval in milliseconds; in the place of windows 1 if denied requests count.
  local function room(i, key, r, p, cost, callers, m)
    local t, instants, kept = roll(i, period_of[r])
    local slot = i and record[i + 1] or 0
    if slot > t then slot = t end
    if kept > 0 and rebase(i, key, slot, 0, 0) then tails[i] = instants end
    slot_of[m], current_of[m], previous_of[m], tail_of[m], instant_of[m], used_of[m] = slot, 0, 0, instants, t, kept
    local free = requests_of[r] - kept
    if a[p] > 0 and kept > 0 and slot + a[p] > t then free = 0 end
    return admit(free, cost, callers)
  end

  local function charge(r, p, cost, admitted, callers, m)
    local requests, add, t = requests_of[r], admitted * cost, instant_of[m]
    if a[p + 3] == 1 then add = add + (callers - admitted) * (cost < 1 and 1 or cost) end
    if add == 0 then return end
    local instants = rep(pack('<I6', t), add < requests and add or requests) .. tail_of[m]
    tail_of[m] = sub(instants, 1, requests * 6)
    used_of[m] = #tail_of[m] / 6
    if requests > 0 then slot_of[m] = t end
  end

  local function reply(r, _, cost, m)
    local requests = requests_of[r]
    if cost < 1 then cost = 1 end
    out[o], out[o + 1], out[o + 2] = used_of[m] > 0 and slot_of[m] or 0, used_of[m], 0
    if cost <= requests and used_of[m] > requests - cost then
      out[o + 2] = unpack('<I6', tail_of[m], (requests - cost) * 6 + 1)
    end
    o = o + 3
  end

  local function settle(i, r, _, charged, more, less)
    local instant, requests = (charged - charged % 1000) / 1000, requests_of[r]
    local _, instants, kept = roll(i, period_of[r])
    local newer = 0
    while newer < kept and unpack('<I6', instants, newer * 6 + 1) > instant do newer = newer + 1 end
    if less > more then
      instants = sub(instants, 1, newer * 6) .. sub(instants, (newer + less) * 6 + 1)
    else
      local added = more - less < requests and more - less or requests
      instants = sub(instants, 1, newer * 6) .. rep(pack('<I6', instant), added) .. sub(instants, newer * 6 + 1)
      instants = sub(instants, 1, requests * 6)
    end
    -- Where nothing is left, the record lasts as long as it would have.
    local newest = record[i + 1] > now + period_of[r] and now or record[i + 1]
    record[i + 1], tails[i] = #instants > 0 and unpack('<I6', instants, 1) or newest, instants
  end

  return {room = room, charge = charge, reply = reply, settle = settle}
end
makers[LOG] = log_rules


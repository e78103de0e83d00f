-- Buckets that warm up: Guava's SmoothWarmingUp, where the cost of a request delays the next one. The slot of a record and its
-- previous count, in 1/256 of a microsecond, are the time of the next request; the current count is the warm-up left.
-- Uses the codec, `rebase` and `reply_counts`. Defines the rules of warm-ups.

local function warm_up_rules()
  local units = fraction * 256

  -- Rolls a record to now: the warm-up grows while no request comes.
  local function roll(i, period, full, factor)
    if not i then return now, full, units end
    local slot, stored, part = record[i + 1], record[i + 2], record[i + 3]
    if stored > full then stored = full end
    local ahead = (slot - now) * 256000 + part - units
    if (slot - now - period * factor) * 256000 + part - units > 0 then
      slot, part = now + period * factor, units
    elseif ahead < 0 then
      stored = stored - ahead
      if stored > full then stored = full end
      slot, part = now, units
    end
    return slot, stored, part
  end

  -- Returns the delay that a request causes, and the warm-up left after it. The order of operations is that of Rust, because the
  -- results are fractions.
  local function delay(requests, period, warm, factor, stored, cost)
    local interval = period * 1000 / requests
    local cold = interval * factor
    local threshold = 0.5 * warm / interval
    local maximum = threshold + 2.0 * warm / (interval + cold)
    local slope = (cold - interval) / (maximum - threshold)
    local cool_down = warm / maximum
    local permits = stored / 256 / cool_down
    local spend = permits < cost and permits or cost
    local left = math.floor((permits - spend) * cool_down * 256)
    local fresh, wait, above = cost - spend, 0.0, permits - threshold
    if above > 0 then
      local taken = above < spend and above or spend
      wait = taken * ((interval + above * slope) + (interval + (above - taken) * slope)) / 2.0
      spend = spend - taken
    end
    wait = wait + interval * spend + interval * fresh
    return math.floor(wait * 256), left
  end

  -- Parameters: the warm-up period in microseconds, the cold factor, the units of a settlement.
  local function room(i, key, r, p, cost, callers, m)
    local slot, stored, part = roll(i, period_of[r], a[p] * 256, a[p + 1])
    slot_of[m], current_of[m], previous_of[m] = slot, stored, part
    rebase(i, key, slot, stored, part)
    local ahead = (slot - now) * 256000 + part - units
    if ahead > 0 or (cost < 1 and 1 or cost) > requests_of[r] then return 0 end
    return callers
  end

  local function charge(r, p, cost, admitted, _, m)
    if admitted * cost == 0 then return end
    local wait, left = delay(requests_of[r], period_of[r], a[p], a[p + 1], current_of[m], cost)
    local part = (previous_of[m] + wait) % 256000
    slot_of[m] = slot_of[m] + (previous_of[m] + wait - part) / 256000
    current_of[m], previous_of[m] = left, part
  end

  local function settle(i, r, p, _, more, less)
    local slot, stored, part = roll(i, period_of[r], a[p] * 256, a[p + 1])
    part = less > more and part - a[p + 2] or part + a[p + 2]
    local left = part % 256000
    slot, part = slot + (part - left) / 256000, left
    if slot < 0 then slot, part = 0, 0 end
    record[i + 1], record[i + 2], record[i + 3] = slot, stored, part
  end

  return {room = room, charge = charge, reply = reply_counts, settle = settle}
end
makers[WARM_UP] = warm_up_rules


-- Token and leaky buckets, and GCRA: a theoretical arrival time. The slot of a record is its milliseconds, the previous count its
-- microseconds, and the current count the fraction of a microsecond, in parts of the number of requests.
-- Uses the codec and `rebase`. Defines `reply_counts`, which a warm-up uses too, and the rules of buckets.

local function reply_counts(_, _, _, m)
  out[o], out[o + 1], out[o + 2] = slot_of[m], current_of[m], previous_of[m]
  o = o + 3
end

local function bucket_rules()
  local function roll(i, requests, furthest)
    if not i then return 0, 0, 0 end
    local slot, rest, part = record[i + 1], record[i + 2], record[i + 3]
    if rest >= (requests < 1 and 1 or requests) then
      local arrival = slot * 1000 + part + 1
      part, rest = arrival % 1000, 0
      slot = (arrival - part) / 1000
    end
    if slot * 1000 + part > micros + furthest then
      part, rest = (micros + furthest) % 1000, 0
      slot = (micros + furthest - part) / 1000
    end
    return slot, rest, part
  end

  -- Returns how far the arrival time is ahead, in microseconds and parts of one.
  local function ahead_of(m)
    local ahead = slot_of[m] * 1000 + previous_of[m] - micros
    if ahead < 0 then return 0, 0 end
    return ahead, current_of[m]
  end

  -- Parameters: the capacity in microseconds and its rest, the time of the cost and its rest, the furthest arrival time.
  local function room(i, key, r, p, cost, callers, m)
    local requests, capacity, capacity_rest, span, span_rest = requests_of[r], a[p], a[p + 1], a[p + 2], a[p + 3]
    slot_of[m], current_of[m], previous_of[m] = roll(i, requests, a[p + 4])
    rebase(i, key, slot_of[m], current_of[m], previous_of[m])
    local ahead, rest = ahead_of(m)
    -- Returns whether so many callers fit: ahead + count * span <= capacity.
    local function fits(count)
      local sum = count * span_rest
      local over = sum % requests
      local x, y = ahead + count * span + (sum - over) / requests, rest + over
      if y >= requests then x, y = x + 1, y - requests end
      return x < capacity or x == capacity and y <= capacity_rest
    end
    if requests < 1 or not fits(1) then return 0 end
    if cost == 0 or fits(callers) then return callers end
    local low, high = 1, callers
    while high - low > 1 do
      local middle = (low + high - (low + high) % 2) / 2
      if fits(middle) then low = middle else high = middle end
    end
    return low
  end

  local function charge(r, p, cost, admitted, _, m)
    if admitted * cost == 0 then return end
    local ahead, rest = ahead_of(m)
    local requests = requests_of[r] < 1 and 1 or requests_of[r]
    local sum = admitted * a[p + 3]
    local over = sum % requests
    ahead, rest = ahead + admitted * a[p + 2] + (sum - over) / requests, rest + over
    if rest >= requests then ahead, rest = ahead + 1, rest - requests end
    local part = (micros + ahead) % 1000
    slot_of[m], current_of[m], previous_of[m] = (micros + ahead - part) / 1000, rest, part
  end

  -- The first parameter of a settlement is 1 for a leaky bucket.
  local function settle(i, r, p, charged, more, less)
    local requests, span, over = requests_of[r], a[p + 2], a[p + 3]
    local slot, rest, part = roll(i, requests, a[p + 4])
    local arrival, per = slot * 1000 + part, requests < 1 and 1 or requests
    if less > more then
      local before, left = arrival - span, rest - over
      if left < 0 then before, left = before - 1, left + per end
      if before < 0 then before, left = 0, 0 end
      -- Only the last reservation of a leaky bucket can be refunded.
      if a[p] == 0 or before + (left > 0 and 1 or 0) == charged then arrival, rest = before, left end
    elseif more > less then
      arrival, rest = arrival + span, rest + over
      if rest >= per then arrival, rest = arrival + 1, rest - per end
    end
    part = arrival % 1000
    record[i + 1], record[i + 2], record[i + 3] = (arrival - part) / 1000, rest, part
  end

  return {room = room, charge = charge, reply = reply_counts, settle = settle}
end
makers[BUCKET] = bucket_rules


-- Decides a batch of checks in one call. What it computes is defined in Rust: Rate::roll, has_room, charge, refuse and
-- settle of sluice-limiter, decide of sluice-store; the bytes of a value in record.rs of sluice-limiter.
--
-- KEYS     the key of every counter, each once
-- ARGV[1]  MessagePack array of whole numbers: the deadline in milliseconds of this server's clock, then for each
--          check: number of counters, number of callers who ask the same; for each of its counters: index in KEYS,
--          cost, number of rates; for each of its rates: requests, tag, and if the tag's lowest bit is set the five
--          numbers of Rate::parameters. A settlement begins with 0 instead: then index in KEYS, the instant that was
--          charged in microseconds, how much more, how much less, number of rates; and its rates, all with parameters.
-- reply    this server's time in microseconds, then for each check: how many of the callers are admitted, and for
--          each rate of each counter the state afterwards: slot, current, previous. Of more than two slots the third is
--          a string, the counts of all previous slots in 6 bytes each; of a log the three are newest instant, number
--          of instants, and the instant that has to leave before the cost fits. Of a soft rate follow since and last. A
--          settlement is answered by 0. Instead of all that, -1 if a key is not a string and -2 if its bytes are no
--          records. After the deadline: the time alone, and nothing is written.
--
-- All reads come before all writes, so an error leaves nothing half done. Every number is a whole one below 2^53,
-- where Lua's doubles are exact, and so is x % y for such x and y: (x - x % y) / y is the floor of x / y. Only the curve of
-- a warm-up is in fractions, in the order of operations of warm_up.rs.

local call, byte, sub, rep, spread = redis.call, string.byte, string.sub, string.rep, unpack
local pack, unpack = struct.pack, struct.unpack
local MAX_COUNT, MAX_PERIOD, MAX_FOREIGN, MAX_BYTES, MAX_INSTANTS = 1099511627776, 31622400000, 8, 65536, 10000
-- The lowest 13 bits of a tag: algorithm * 512 + previous slots * 8. A sliding window's are 520 to 992.
local TWO_WINDOWS, ONE_WINDOW, SPREAD, FIRST, LOG, ARRIVAL, WARM_UP, OVER = 520, 1024, 1536, 2048, 2560, 3072, 3584, 4096
local keys, a = KEYS, cmsgpack.unpack(ARGV[1])

local t = call('TIME')
local fraction = t[2] % 1000
local now, micros = t[1] * 1000 + (t[2] - fraction) / 1000, t[1] * 1000000 + t[2]
if now > a[1] then return {micros} end

-- Formats of a record by the width of its counts, made when first met.
local formats_two, formats_one = {}, {}
local function format(two, width)
  local f
  if two then
    f = '<I6I6I' .. width .. 'I' .. width
    formats_two[width] = f
  else
    f = '<I6I6I' .. width
    formats_one[width] = f
  end
  return f
end

-- Records of all keys side by side, four cells each: tag, slot, current, previous; n cells are taken. They are
-- filled one by one, as a multiple assignment begins at its right end, where a table cannot grow as an array.
local rec, n = {}, 0
-- What few records have, by their first cell: counts of more than two slots (a table that is never changed) or instants
-- (a string); since when a soft rate is over its number, and the end of its last slot above it.
local tails, sinces, lasts = {}, {}, {}
-- Keys, five cells each: where the first record stands (or -1 and -2 for what is no counter), where the last one; of
-- the value that was read the length, and its records' latest end, which is also when the key expires; whether it is
-- to be written.
local info = {}

local function ends_of(i, tag, slot)
  local kind = tag % 8192
  local period, e = (tag - kind) / 8192, nil
  if kind < ONE_WINDOW then
    local slots = (kind - 512) / 8
    e = (slot + slots + 1) * (period / slots)
  elseif kind < FIRST then e = (slot + 1) * period
  elseif kind < ARRIVAL then e = slot + period
  elseif kind == ARRIVAL then e = slot + 1
  else e = slot + 3600001 end
  local last = lasts[i]
  if last and last + period > e then e = last + period end
  return e
end

-- Reads a record that is neither of two windows nor of one; returns the position after it, or nil.
local function parse_other(value, pos, length, kind, width)
  local period
  if kind == LOG then
    if width ~= 6 or pos + 13 > length then return nil end
    local tag, slot, count = unpack('<I6I6I2', value, pos)
    tag = tag - 6
    period = (tag - kind) / 8192
    local stop = pos + 13 + 6 * count
    if count > MAX_INSTANTS or stop > length or period < 1 or period > MAX_PERIOD then return nil end
    local newer = slot
    for at = pos + 14, stop - 5, 6 do
      local instant = unpack('<I6', value, at)
      if instant > newer or (at == pos + 14 and instant ~= slot) then return nil end
      newer = instant
    end
    rec[n + 1] = tag
    rec[n + 2] = slot
    rec[n + 3] = 0
    rec[n + 4] = 0
    tails[n + 1] = sub(value, pos + 14, stop)
    n = n + 4
    return stop + 1
  end
  local slots, counts = 0, 1
  if kind == ARRIVAL or kind == WARM_UP then counts = 2
  elseif kind > 520 and kind <= 992 then
    slots = (kind - 512) / 8
    counts = slots + 1
  elseif kind ~= SPREAD and kind ~= FIRST and kind ~= TWO_WINDOWS and kind ~= ONE_WINDOW then return nil end
  if width == 0 or width == 7 or pos + 11 + counts * width > length then return nil end
  local tag, slot = unpack('<I6I6', value, pos)
  tag = tag - width
  period = (tag - kind) / 8192
  if period < 1 or period > MAX_PERIOD or (slots > 1 and period % slots > 0) then return nil end
  rec[n + 1] = tag
  rec[n + 2] = slot
  rec[n + 3] = unpack('<I' .. width, value, pos + 12)
  rec[n + 4] = counts > 1 and unpack('<I' .. width, value, pos + 12 + width) or 0
  if slots > 1 then
    local tail = {unpack('<' .. rep('I' .. width, slots - 1), value, pos + 12 + 2 * width)}
    tail[slots] = nil
    tails[n + 1] = tail
  end
  n = n + 4
  return pos + 12 + counts * width
end

-- Reads since when the record before is over its number; returns the position after it, or nil.
local function parse_over(value, pos, length, width)
  local before = rec[n - 3] % 8192
  if width == 0 or width == 7 or pos + 11 + width > length or before >= LOG
    or (rec[n - 3] - before) / 8192 ~= (unpack('<I6', value, pos) - OVER - width) / 8192
    or sinces[n - 3] then return nil end
  local since = unpack('<I6', value, pos + 6)
  sinces[n - 3] = since
  lasts[n - 3] = since + unpack('<I' .. width, value, pos + 12)
  return pos + 12 + width
end

-- Appends the records of a value; returns their latest end, or -2 if there is something else in it.
local function parse(value)
  local pos, length, ends, first = 1, #value, 0, n
  if length > MAX_BYTES then return -2 end
  while pos <= length do
    if pos == length then return -2 end
    local b0, b1 = byte(value, pos, pos + 1)
    local low = b0 + b1 % 32 * 256
    local width = low % 8
    local kind = low - width
    if kind == TWO_WINDOWS and width > 0 and width < 7 then
      if pos + 11 + 2 * width > length then return -2 end
      local tag, slot, current, previous
      tag, slot, current, previous, pos = unpack(formats_two[width] or format(true, width), value, pos)
      tag = tag - width
      local period = (tag - 520) / 8192
      if period < 1 or period > MAX_PERIOD then return -2 end
      rec[n + 1] = tag
      rec[n + 2] = slot
      rec[n + 3] = current
      rec[n + 4] = previous
      n = n + 4
      local e = (slot + 2) * period
      if e > ends then ends = e end
    elseif kind == OVER and n > first then
      pos = parse_over(value, pos, length, width)
      if not pos then return -2 end
      local e = ends_of(n - 3, rec[n - 3], rec[n - 2])
      if e > ends then ends = e end
    else
      pos = parse_other(value, pos, length, kind, width)
      if not pos then return -2 end
      local e = ends_of(n - 3, rec[n - 3], rec[n - 2])
      if e > ends then ends = e end
    end
  end
  return ends
end

-- ceil(previous * rest / period) for rest <= period, where the product may pass 2^53. With previous = q * period + r:
-- q * rest + ceil(r * rest / period); r * rest is taken as r * (h * 2^18 + l). Periods are below 2^35, so r * h is
-- below 2^52, and the remainder of it times 2^18 below 31622400000 * 2^18 < 2^53.
local function long_share(previous, rest, period)
  local r = previous % period
  local whole = (previous - r) / period * rest
  local l = rest % 262144
  local x = r * ((rest - l) / 262144)
  local m = x % period
  whole = whole + (x - m) / period * 262144
  x = m * 262144
  local m1 = x % period
  whole = whole + (x - m1) / period
  x = r * l
  local m2 = x % period
  whole = whole + (x - m2) / period
  m = m1 + m2
  if m > period then return whole + 2 elseif m > 0 then return whole + 1 end
  return whole
end

-- ceil(count * rest / length)
local function share(count, rest, length)
  local x = count * rest
  if x > 9007199254740992 then return long_share(count, rest, length) end
  local over = x % length
  return over > 0 and (x - over) / length + 1 or x / length
end

-- Where the record of a tag stands among those of a key.
local function find(tag, from, to)
  for i = from, to, 4 do
    if rec[i] == tag then return i end
  end
end

-- A window's record at an instant (milliseconds), and the instant that counts.
local function roll_window(i, kind, period, t)
  local slots = kind < ONE_WINDOW and (kind - 512) / 8 or 0
  local length = slots > 1 and period / slots or period
  local slot, current, previous, tail, since, last = nil, 0, 0, nil, 0, 0
  local stored
  if i then stored, since, last = rec[i + 1], sinces[i] or 0, lasts[i] or 0 end
  if kind == FIRST then
    slot = t
    if stored then
      current = rec[i + 2]
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
    return t, length, slots, slot, current, previous, tail, since, last
  end
  slot = (t - t % length) / length
  if stored then
    if stored >= slot and stored - slot <= (slots > 1 and slots or 1) then
      if stored > slot then slot, t = stored, stored * length end
      current, previous, tail = rec[i + 2], rec[i + 3], tails[i]
    elseif stored < slot then
      local by = slot - stored
      if by <= slots then
        local c, p, old = rec[i + 2], rec[i + 3], tails[i]
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
      current = rec[i + 2] + rec[i + 3]
      local old = tails[i]
      if old then
        for k = 1, slots - 1 do current = current + old[k] end
      end
      if current > MAX_COUNT then current = MAX_COUNT end
      if since > t then since = t end
      if last > t then last = t end
    end
  end
  if slots > 1 and not tail then
    tail = {}
    for k = 1, slots - 1 do tail[k] = 0 end
  end
  return t, length, slots, slot, current, previous, tail, since, last
end

-- How many instants of a log still count.
local function kept_of(instants, t, period)
  local low, high = 0, #instants / 6
  while low < high do
    local middle = (low + high - (low + high) % 2) / 2
    if unpack('<I6', instants, middle * 6 + 1) + period > t then low = middle + 1 else high = middle end
  end
  return low
end

-- A log at now: the instant that counts, its instants, how many.
local function roll_log(i, period)
  if not i then return now, '', 0 end
  local newest, instants, t = rec[i + 1], tails[i], now
  if newest > now + period then
    instants = rep(pack('<I6', now), #instants / 6)
  elseif newest > now then
    t = newest
  end
  local kept = kept_of(instants, t, period)
  return t, sub(instants, 1, kept * 6), kept
end

-- A theoretical arrival time at now.
local function roll_arrival(i, requests, furthest)
  if not i then return 0, 0, 0 end
  local slot, rest, part = rec[i + 1], rec[i + 2], rec[i + 3]
  if rest >= (requests < 1 and 1 or requests) then
    local tat = slot * 1000 + part + 1
    part, rest = tat % 1000, 0
    slot = (tat - part) / 1000
  end
  if slot * 1000 + part > micros + furthest then
    part, rest = (micros + furthest) % 1000, 0
    slot = (micros + furthest - part) / 1000
  end
  return slot, rest, part
end

-- A warm-up at now.
local function roll_warm_up(i, period, full, factor)
  local units = fraction * 256
  if not i then return now, full, units end
  local slot, stored, part = rec[i + 1], rec[i + 2], rec[i + 3]
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

-- What one more request of a warm-up delays the next one, and what is left of its store.
local function warm_up(requests, period, warm, factor, stored, cost)
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

-- The records of one check, rolled to now, three cells each: slot, current, previous. What few of them have: the first
-- three as above; the instant that counts; how much is used, of a log how many instants.
local rolled, r_tails, r_sinces, r_lasts, r_now, r_used = {}, {}, {}, {}, {}, {}

-- What has been rebased is written even if the answer is no: or each denial would rebase it again, until the clock has
-- caught up.
local function rebase(i, k, slot, current, previous)
  if i and slot < rec[i + 1] then
    rec[i + 1], rec[i + 2], rec[i + 3] = slot, current, previous
    info[k] = true
    return true
  end
end

-- Rolls the record of a rate with parameters into the cells after m; returns how many of the callers it admits.
local function other(p, k, from, to, cost, admitted, m)
  local requests, tag, p1, p2, p3 = a[p], a[p + 1] - 1, a[p + 2], a[p + 3], a[p + 4]
  local kind = tag % 8192
  local period = (tag - kind) / 8192
  local i = find(tag, from, to)
  local slot, current, previous, room
  if kind < LOG then
    local t, length, slots, tail, since, last
    t, length, slots, slot, current, previous, tail, since, last =
      roll_window(i, kind, period, kind == SPREAD and now + p1 or now)
    local used, oldest = current, previous
    if slots > 1 then
      used = used + previous
      for k = 1, slots - 2 do used = used + tail[k] end
      oldest = tail[slots - 1]
    end
    if slots > 0 and oldest > 0 then
      used = used + (p1 == 1 and oldest or share(oldest, (slot + 1) * length - t, length))
    end
    room = requests - used
    if p3 > 0 and (since == 0 or t < since + p3 or t >= last + period) then room = p2 - used end
    if rebase(i, k, slot, current, previous) then
      tails[i] = tail
      if since > 0 then sinces[i], lasts[i] = since, last end
    end
    r_tails[m], r_sinces[m], r_lasts[m], r_now[m], r_used[m] = tail, since, last, t, used
  elseif kind == LOG then
    local t, instants, kept = roll_log(i, period)
    slot, current, previous = kept > 0 and rec[i + 1] or 0, 0, 0
    if kept > 0 and slot > t then slot = t end
    if kept > 0 and rebase(i, k, slot, 0, 0) then tails[i] = instants end
    room = requests - kept
    if p1 > 0 and kept > 0 and slot + p1 > t then room = 0 end
    r_tails[m], r_now[m], r_used[m] = instants, t, kept
  elseif kind == ARRIVAL then
    slot, current, previous = roll_arrival(i, requests, a[p + 6])
    rebase(i, k, slot, current, previous)
    local ahead, rest = slot * 1000 + previous - micros, current
    if ahead < 0 then ahead, rest = 0, 0 end
    local span, part = p3, a[p + 5]
    -- Whether so many fit: ahead + k * span <= capacity.
    local function fits(k)
      local r = k * part
      local over = r % requests
      local x, y = ahead + k * span + (r - over) / requests, rest + over
      if y >= requests then x, y = x + 1, y - requests end
      return x < p1 or (x == p1 and y <= p2)
    end
    if requests < 1 or not fits(1) then return 0, slot, current, previous end
    if cost > 0 and not fits(admitted) then
      local low, high = 1, admitted
      while high - low > 1 do
        local middle = (low + high - (low + high) % 2) / 2
        if fits(middle) then low = middle else high = middle end
      end
      admitted = low
    end
    return admitted, slot, current, previous
  else
    slot, current, previous = roll_warm_up(i, period, p1 * 256, p2)
    rebase(i, k, slot, current, previous)
    local ahead = (slot - now) * 256000 + previous - fraction * 256
    if ahead > 0 or (cost < 1 and 1 or cost) > requests then admitted = 0 end
    return admitted, slot, current, previous
  end
  if cost == 0 then
    if room < 1 then admitted = 0 end
  elseif cost * admitted > room then
    if room < cost then admitted = 0 else admitted = (room - room % cost) / cost end
  end
  return admitted, slot, current, previous
end

-- The cells after m with so many admitted of so many callers; adds to the tables of what few records have.
local function charge(p, m, cost, admitted, callers)
  local requests, tag = a[p], a[p + 1] - 1
  local kind = tag % 8192
  local period = (tag - kind) / 8192
  local slot, current, previous, add = rolled[m + 1], rolled[m + 2], rolled[m + 3], admitted * cost
  if kind < LOG then
    if add > 0 then
      current = current + add
      if current > MAX_COUNT then current = MAX_COUNT end
      if a[p + 4] > 0 and r_used[m] + add > requests then
        local t = r_now[m]
        if r_sinces[m] == 0 or r_sinces[m] > t or t >= r_lasts[m] + period then r_sinces[m] = t end
        if kind == FIRST then r_lasts[m] = slot + period
        else r_lasts[m] = (slot + 1) * (kind < ONE_WINDOW and period / ((kind - 512) / 8) or period) end
      end
    end
  elseif kind == LOG then
    if a[p + 3] == 1 then add = add + (callers - admitted) * (cost < 1 and 1 or cost) end
    if add > 0 then
      local t = r_now[m]
      local instants = sub(rep(pack('<I6', t), add < requests and add or requests) .. r_tails[m], 1, requests * 6)
      r_tails[m], r_used[m] = instants, #instants / 6
      slot = requests > 0 and t or 0
    end
  elseif kind == ARRIVAL then
    if add > 0 then
      local ahead, rest = slot * 1000 + previous - micros, current
      if ahead < 0 then ahead, rest = 0, 0 end
      local r = admitted * a[p + 5]
      local over = r % requests
      ahead, rest = ahead + admitted * a[p + 4] + (r - over) / requests, rest + over
      if rest >= requests then ahead, rest = ahead + 1, rest - requests end
      previous, current = (micros + ahead) % 1000, rest
      slot = (micros + ahead - previous) / 1000
    end
  elseif add > 0 then
    local wait, left = warm_up(requests, period, a[p + 2], a[p + 3], current, cost)
    current = left
    local part = (previous + wait) % 256000
    slot, previous = slot + (previous + wait - part) / 256000, part
  end
  return slot, current, previous
end

-- Corrects what was charged; p stands behind the 0. Returns the position after the settlement.
local function settle(p, from, to)
  local charged, more, less, rates = a[p + 1], a[p + 2], a[p + 3], a[p + 4]
  local instant = (charged - charged % 1000) / 1000
  local changed = false
  p = p + 5
  for _ = 1, rates do
    local requests, tag, p1 = a[p], a[p + 1] - 1, a[p + 2]
    local kind = tag % 8192
    local period = (tag - kind) / 8192
    local i = find(tag, from, to)
    if i then
      changed = true
      local function shifted(count)
        count = count + more - less
        return count < 0 and 0 or count > MAX_COUNT and MAX_COUNT or count
      end
      if kind < LOG then
        local phase = kind == SPREAD and p1 or 0
        local t, length, slots, slot, current, previous, tail, since, last = roll_window(i, kind, period, now + phase)
        local at = instant + phase
        if kind == FIRST then
          if at >= slot then current = shifted(current) end
        else
          local index = slot - (at - at % length) / length
          if index <= 0 then current = shifted(current)
          elseif index <= slots then
            if index == 1 then previous = shifted(previous)
            else
              local copy = {}
              for k = 1, slots - 1 do copy[k] = tail[k] end
              copy[index - 1] = shifted(copy[index - 1])
              tail = copy
            end
          end
        end
        rec[i + 1], rec[i + 2], rec[i + 3], tails[i] = slot, current, previous, tail
        if since > 0 then sinces[i], lasts[i] = since, last end
      elseif kind == LOG then
        local _, instants, kept = roll_log(i, period)
        local newer, same = 0, 0
        for at = 1, kept * 6, 6 do
          local other = unpack('<I6', instants, at)
          if other > instant then newer = newer + 1 elseif other == instant then same = same + 1 else break end
        end
        if less > more then
          local gone = less - more
          if gone > same then gone = same end
          instants = sub(instants, 1, newer * 6) .. sub(instants, (newer + gone) * 6 + 1)
        else
          local added = more - less
          if added > requests then added = requests end
          instants = sub(instants, 1, newer * 6) .. rep(pack('<I6', instant), added) .. sub(instants, newer * 6 + 1)
          instants = sub(instants, 1, requests * 6)
        end
        rec[i + 1], tails[i] = #instants > 0 and unpack('<I6', instants, 1) or 0, instants
      elseif kind == ARRIVAL then
        local slot, rest, part = roll_arrival(i, requests, a[p + 6])
        local tat, span, over, per = slot * 1000 + part, a[p + 4], a[p + 5], requests < 1 and 1 or requests
        if less > more then
          tat, rest = tat - span, rest - over
          if rest < 0 then tat, rest = tat - 1, rest + per end
          if tat < 0 then tat, rest = 0, 0 end
        elseif more > less then
          tat, rest = tat + span, rest + over
          if rest >= per then tat, rest = tat + 1, rest - per end
        end
        part = tat % 1000
        rec[i + 1], rec[i + 2], rec[i + 3] = (tat - part) / 1000, rest, part
      else
        local slot, stored, part = roll_warm_up(i, period, p1 * 256, a[p + 3])
        part = less > more and part - a[p + 4] or part + a[p + 4]
        local left = part % 256000
        slot, part = slot + (part - left) / 256000, left
        if slot < 0 then slot, part = 0, 0 end
        rec[i + 1], rec[i + 2], rec[i + 3] = slot, stored, part
      end
    end
    p = p + 7
  end
  return p, changed
end

-- Copies a record that no rate of the limit uses behind the others, if it has not expired: during a roll-out both are in
-- use. One that is far ahead is rebased as its own rate would do, or it would hold the key for as long.
local function carry(i)
  local tag, slot, current, previous = rec[i], rec[i + 1], rec[i + 2], rec[i + 3]
  if ends_of(i, tag, slot) <= now then return false end
  local kind = tag % 8192
  local period = (tag - kind) / 8192
  local tail, since, last = tails[i], sinces[i], lasts[i]
  if kind < FIRST then
    local slots = kind < ONE_WINDOW and (kind - 512) / 8 or 0
    local length = slots > 1 and period / slots or period
    if slot > (now - now % length) / length + (slots > 1 and slots or 1) then
      local _
      _, _, _, slot, current, previous, tail, since, last = roll_window(i, kind, period, now)
      if since == 0 then since, last = nil, nil end
    end
  elseif kind == FIRST then
    if slot > now + period then
      slot = now
      if since then since, last = since < now and since or now, last < now and last or now end
    end
  elseif kind == LOG then
    if slot > now + period then slot, tail = now, rep(pack('<I6', now), #tail / 6) end
  elseif slot > now + 2 * MAX_PERIOD then
    slot = now + 2 * MAX_PERIOD
  end
  rec[n + 1] = tag
  rec[n + 2] = slot
  rec[n + 3] = current
  rec[n + 4] = previous
  tails[n + 1], sinces[n + 1], lasts[n + 1] = tail, since, last
  n = n + 4
  return true
end

local function width_of(top)
  return top < 256 and 1 or top < 65536 and 2 or top < 16777216 and 3 or top < 4294967296 and 4
    or top < 1099511627776 and 5 or 6
end

-- The bytes of a record that is neither of two windows nor of one, or is soft.
local function encode_other(i, kind, tag, slot, current, previous)
  local bytes
  if kind == LOG then
    return pack('<I6I6I2', tag + 6, slot, #tails[i] / 6) .. tails[i]
  end
  if current > MAX_COUNT then current = MAX_COUNT end
  if previous > MAX_COUNT then previous = MAX_COUNT end
  local two = kind < ONE_WINDOW or kind >= ARRIVAL
  local tail, top = tails[i], current
  if two and previous > top then top = previous end
  if tail then
    for k = 1, #tail do
      if tail[k] > top then top = tail[k] end
    end
  end
  local width = width_of(top)
  if tail then
    bytes = pack('<I6I6' .. rep('I' .. width, #tail + 2), tag + width, slot, current, previous, spread(tail))
  elseif two then
    bytes = pack(formats_two[width] or format(true, width), tag + width, slot, current, previous)
  else
    bytes = pack(formats_one[width] or format(false, width), tag + width, slot, current)
  end
  local since = sinces[i]
  if since and since > 0 then
    local lasted = lasts[i] - since
    if lasted < 0 then lasted = 0 elseif lasted > MAX_COUNT then lasted = MAX_COUNT end
    width = width_of(lasted)
    bytes = bytes .. pack('<I6I6I' .. width, tag - kind + OVER + width, since, lasted)
  end
  return bytes
end

-- Values of all keys at once. One that is not a string looks as if it were not there, so those are asked for again.
local values = #keys > 0 and call('MGET', spread(keys))

local function load(key, at)
  local value, ends, from, start = values[key], 0, n + 1, n
  if not value then
    value = redis.pcall('GET', keys[key])
    if type(value) == 'table' then
      if sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
      value, from = false, -1
    end
  end
  if value then
    ends = parse(value)
    if ends < 0 then
      for i = start + 1, n, 4 do tails[i], sinces[i], lasts[i] = nil, nil, nil end
      n, from = start, ends
    end
  end
  info[at - 4] = from
  info[at - 3] = n - 3
  info[at - 2] = value and #value or 0
  info[at - 1] = ends
  info[at] = false
  return from
end

local out, o, p, stop = {micros}, 2, 2, #a
while p <= stop do
  local counters, admitted, bad = a[p], a[p + 1], nil
  if counters == 0 then
    local k = admitted * 5
    local from = info[k - 4] or load(admitted, k)
    if type(from) == 'table' then return from end
    local changed
    p, changed = settle(p + 1, from < 0 and 1 or from, from < 0 and 0 or info[k - 3])
    if changed then info[k] = true end
    out[o] = from < 0 and from or 0
    o = o + 1
  else
    local callers, start, m = admitted, p + 2, 0
    p = start
    for _ = 1, counters do
      local k, cost, rates = a[p] * 5, a[p + 1], a[p + 2]
      p = p + 3
      local from = info[k - 4]
      if not from then
        from = load(a[p - 3], k)
        if type(from) == 'table' then return from end
      end
      if from < 0 then
        bad = bad or from
        for _ = 1, rates do p = p + (a[p + 1] % 8 == 1 and 7 or 2) end
      else
        local to = info[k - 3]
        for _ = 1, rates do
          local requests, tag = a[p], a[p + 1]
          local kind = tag % 8192
          if kind == TWO_WINDOWS or kind == ONE_WINDOW then
            p = p + 2
            local period = (tag - kind) / 8192
            local slot = (now - now % period) / period
            local current, previous = 0, 0
            for i = from, to, 4 do
              if rec[i] == tag then
                local stored = rec[i + 1]
                if stored == slot then
                  current, previous = rec[i + 2], rec[i + 3]
                elseif stored == slot - 1 then
                  if kind == TWO_WINDOWS then previous = rec[i + 2] end
                elseif stored == slot + 1 then
                  slot, current, previous = stored, rec[i + 2], rec[i + 3]
                elseif stored > slot then
                  current = rec[i + 2] + rec[i + 3]
                  if current > MAX_COUNT then current = MAX_COUNT end
                  if sinces[i] then
                    if sinces[i] > now then sinces[i] = now end
                    if lasts[i] > now then lasts[i] = now end
                  end
                  rec[i + 1], rec[i + 2], rec[i + 3] = slot, current, 0
                  info[k] = true
                end
                break
              end
            end
            local room = requests - current
            if previous > 0 then
              local rest = (slot + 1) * period - now
              if rest > period then rest = period end
              local x = previous * rest
              if x <= 9007199254740992 then
                local over = x % period
                room = room - (x - over) / period
                if over > 0 then room = room - 1 end
              else
                room = room - long_share(previous, rest, period)
              end
            end
            if cost == 0 then
              if room < 1 then admitted = 0 end
            elseif cost * admitted > room then
              if room < cost then admitted = 0 else admitted = (room - room % cost) / cost end
            end
            rolled[m + 1] = slot
            rolled[m + 2] = current
            rolled[m + 3] = previous
          else
            admitted, rolled[m + 1], rolled[m + 2], rolled[m + 3] = other(p, k, from, to, cost, admitted, m)
            p = p + 7
          end
          m = m + 3
        end
      end
    end
    if bad then
      out[o] = bad
      o = o + 1
    else
      out[o] = admitted
      o = o + 1
      p, m = start, 0
      for _ = 1, counters do
        local k, cost, rates = a[p] * 5, a[p + 1], a[p + 2]
        p = p + 3
        local add, from, to = admitted * cost, info[k - 4], info[k - 3]
        local write = add > 0
        if not write and admitted < callers then
          -- A log that counts denials is written by them too.
          local q = p
          for _ = 1, rates do
            local kind = a[q + 1] % 8192
            if kind == LOG + 1 and a[q + 3] == 1 then write = true end
            q = q + (kind % 8 == 1 and 7 or 2)
          end
        end
        local base, alone = n, false
        if write then
          info[k] = true
          alone = rates == 1 and from == to and rec[from] == a[p + 1]
          if alone then
            base = from - 1
          else
            n, info[k - 4] = n + 4 * rates, n + 1
          end
        end
        local i = base + 1
        for _ = 1, rates do
          local tag = a[p + 1]
          local kind = tag % 8192
          if kind == TWO_WINDOWS or kind == ONE_WINDOW then
            local slot, current, previous = rolled[m + 1], rolled[m + 2] + add, rolled[m + 3]
            out[o] = slot
            out[o + 1] = current
            out[o + 2] = previous
            o = o + 3
            if write then
              rec[i] = tag
              rec[i + 1] = slot
              rec[i + 2] = current
              rec[i + 3] = previous
              if not alone then
                -- A rate that is hard keeps what is known of when it was soft.
                local before = find(tag, from, to)
                if before then sinces[i], lasts[i] = sinces[before], lasts[before] end
              end
            end
            p = p + 2
          else
            local slot, current, previous = charge(p, m, cost, admitted, callers)
            tag = tag - 1
            kind = kind - 1
            if kind == LOG then
              local instants, used, requests, c = r_tails[m], r_used[m], a[p], cost < 1 and 1 or cost
              out[o] = slot
              out[o + 1] = used
              out[o + 2] = (c <= requests and used > requests - c) and unpack('<I6', instants, (requests - c) * 6 + 1) or 0
            else
              out[o] = slot
              out[o + 1] = current
              local tail = kind < LOG and r_tails[m]
              if tail then
                out[o + 2] = pack('<' .. rep('I6', #tail + 1), previous, spread(tail))
              else
                out[o + 2] = previous
              end
            end
            o = o + 3
            if kind < LOG and a[p + 4] > 0 then
              out[o] = r_sinces[m]
              out[o + 1] = r_lasts[m]
              o = o + 2
            end
            if write then
              rec[i] = tag
              rec[i + 1] = slot
              rec[i + 2] = current
              rec[i + 3] = previous
              if kind <= LOG then tails[i] = r_tails[m] end
              if kind < LOG and r_sinces[m] > 0 then sinces[i], lasts[i] = r_sinces[m], r_lasts[m] end
            end
            p = p + 7
          end
          m = m + 3
          i = i + 4
        end
        if write and not alone then
          local own, room = n, MAX_FOREIGN
          for j = from, to, 4 do
            if room > 0 and not find(rec[j], base + 1, own - 3) and carry(j) then room = room - 1 end
          end
          info[k - 3] = n - 3
        end
      end
    end
  end
end

for k = 1, #keys do
  local at = k * 5
  if info[at] then
    local value, ends = nil, 0
    for i = info[at - 4], info[at - 3], 4 do
      local tag, slot, current, previous = rec[i], rec[i + 1], rec[i + 2], rec[i + 3]
      local kind = tag % 8192
      local bytes, e
      if kind == TWO_WINDOWS and not sinces[i] then
        local top = current
        if previous > top then top = previous end
        local width = width_of(top)
        bytes = pack(formats_two[width] or format(true, width), tag + width, slot, current, previous)
        e = (slot + 2) * ((tag - 520) / 8192)
      elseif kind == ONE_WINDOW and not sinces[i] then
        local width = width_of(current)
        bytes = pack(formats_one[width] or format(false, width), tag + width, slot, current)
        e = (slot + 1) * ((tag - 1024) / 8192)
      else
        bytes = encode_other(i, kind, tag, slot, current, previous)
        e = ends_of(i, tag, slot)
      end
      value = value and value .. bytes or bytes
      if e > ends then ends = e end
    end
    -- SETRANGE keeps the time to live, and costs less.
    if #value == info[at - 2] and ends == info[at - 1] then
      call('SETRANGE', keys[k], '0', value)
    else
      call('SET', keys[k], value, 'PXAT', ends)
    end
  end
end
return out

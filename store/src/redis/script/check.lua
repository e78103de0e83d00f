-- Decides a batch of checks in one call. What it computes is defined in Rust: Rate::roll, has_room, charge, refuse and
-- settle of sluice-limiter, decide of sluice-store; the bytes of a value in record.rs of sluice-limiter.
--
-- KEYS     the key of every counter, each once, in the order in which they are first met
-- ARGV[1]  MessagePack array of whole numbers: the deadline in milliseconds of this server's clock, the number of limits,
--          for each of them the number of its rates, and for each rate: requests, tag (its lowest bit set if it has
--          parameters). Then what is asked, one after another, runs last:
--          0: a settlement: index in KEYS, the instant that was charged in microseconds, how much more, how much less, limit;
--          1: a check: number of counters, number of callers who ask the same; for each counter: index in KEYS, cost, limit;
--          2: a run of checks of cost 1 that have the next keys, one each, which nothing else in the call is about:
--          limit, which has no parameters; number of callers of each check; number of checks; number of counters that all
--          these checks have besides, none with several callers, and for each of those index in KEYS and limit, which
--          has one rate and no parameters.
--          Behind each limit that is named the five numbers of Rate::parameters for each of its rates that has
--          parameters; of a settlement's those of Rate::settlement_parameters for each of its rates.
-- reply    this server's time in microseconds, then for each check: how many of the callers are admitted, and for
--          each rate of each counter the state afterwards: slot, current, previous. Of more than two slots the third is
--          a string, the counts of all previous slots in 6 bytes each; of a log the three are newest instant, number
--          of instants, and the instant that has to leave before the cost fits; of holders the latest end, the places
--          held, and 0. Of a soft rate follow since and last. A check of a run of one caller whose key holds just the
--          records of its limit, none of them ahead, is answered for each rate by -3 - (c * 4 + 1 if it is admitted),
--          where c is previous * 2^20 + current, if previous is below 2^29 and current below 2^20, or else by
--          -3 - (current * 4 + 2 + 1 if it is admitted) and previous. How the other counters of a run stand before its
--          first check is said once, by slot, current and previous, or -1 if all its checks are answered in full; then
--          each that is admitted in the short form adds one. A settlement is answered by 0. Instead of all that, -1 if a
--          key is not a string (a run's own one only where it would be charged) and -2 if its bytes are no records.
--          After the deadline: the time alone, and nothing is written.
--
-- All reads come before all writes but those of a run, whose keys nothing else is about: no error leaves anything half
-- done. Every number is a whole one below 2^53, where Lua's doubles are exact, and so is x % y for such x and y:
-- (x - x % y) / y is the floor of x / y. Only the curve of a warm-up is in fractions, in the order of operations of
-- warm_up.rs.
--
-- What nearly all checks are is decided by the little code in the loop at the end, which makes no function and few tables: each of
-- them costs as much as a good part of a check. The rest is set up when something needs it.

local call, spread = redis.call, unpack
local pack, unpack = struct.pack, struct.unpack
-- The lowest 13 bits of a tag: algorithm * 512 + previous slots * 8. A sliding window's are 520 to 992.
local TWO_WINDOWS, ONE_WINDOW = 520, 1024
local keys, a = KEYS, cmsgpack.unpack(ARGV[1])

local t = call('TIME')
local fraction = t[2] % 1000
local now, micros = t[1] * 1000 + (t[2] - fraction) / 1000, t[1] * 1000000 + t[2]
if now > a[1] then return {micros} end

-- Limits: where the rates of each begin among all. Rates: requests, tag, whether there are parameters; and of the two
-- kinds without: period, the slot of now, what is left of it.
local first, rate_requests, rate_tag, rate_flag, rate_period, rate_slot, rate_rest = {1}, {}, {}, {}, {}, {}, {}
local p, rates = 3, 0
for l = 1, a[2] or 0 do
  local more = a[p]
  p = p + 1
  for r = rates + 1, rates + more do
    local tag = a[p + 1]
    local flag = tag % 2
    tag = tag - flag
    rate_requests[r], rate_tag[r], rate_flag[r] = a[p], tag, flag == 1
    local period = (tag - tag % 8192) / 8192
    local over = now % period
    rate_period[r], rate_slot[r], rate_rest[r] = period, (now - over) / period, period - over
    p = p + 2
  end
  rates = rates + more
  first[l + 1] = rates + 1
end

local out, o, stop, named = {micros}, 2, #a, 0

-- Formats by the width of counts: of a record of two windows, of one, and of a count; made when first met.
local formats_two, formats_one, parts = {}, {}, {}

-- Values of all keys at once. One that is not a string looks as if it were not there.
local values = #keys > 0 and call('MGET', spread(keys))

-- Why a key cannot be read.
local failed
-- A run has counters besides, which all its checks have: how many; how many more the least of them has room for, and how
-- many the checks of the run have taken; whether they are answered in the short form.
local besides, left, taken, alike = 0, 0, 0, true

-- Previous counts below this go the quick ways: times what is left of a period they are exact.
local PREVIOUS = 262144

-- What is set up when something needs it. All that is not a run: what is asked, of the kind, where p stands; returns the
-- position after it, or an error. The counters besides a run. A check of a run that is not quick. The writes.
local ask, begin_besides, note_besides, any_one, any_many, write_all
local function set_up()
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

  local function width_of(top)
    return top < 256 and 1 or top < 65536 and 2 or top < 16777216 and 3 or top < 4294967296 and 4
      or top < 1099511627776 and 5 or 6
  end

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

  -- Counters whose records are just those of a limit of one rate without parameters, and that several checks may be about,
  -- by key: the rate, slot and counts, and whether the key ends when it did. Which keys they are.
  local s_rate, s_slot, s_current, s_previous, s_same, s_keys = {}, {}, {}, {}, {}, {}
  -- Keys whose records are all read, five cells each; see below.
  local info = {}

  -- The record of a rate at now, if its key holds just that, or nothing: slot, counts, whether it ends when the key does. Nil
  -- if there is more than that to it, or if it is ahead.
  local function read(key, r)
    local known = s_rate[key]
    if known then
      if known ~= r then return nil end
      return s_slot[key], s_current[key], s_previous[key], s_same[key]
    end
    if info[key * 5 - 4] then return nil end
    local value, slot = values[key], rate_slot[r]
    if not value then
      local other = redis.pcall('GET', keys[key])
      if other then
        if string.sub(other.err, 1, 9) ~= 'WRONGTYPE' then failed = other end
        return nil
      end
      return slot, 0, 0, false
    end
    local length, tag = #value, rate_tag[r]
    local two = tag % 8192 == TWO_WINDOWS
    local width = two and (length - 12) / 2 or length - 12
    if width < 1 or width > 6 or width % 1 > 0 then return nil end
    local own, stored, current, previous =
      unpack(two and (formats_two[width] or format(true, width)) or formats_one[width] or format(false, width), value)
    if own ~= tag + width then return nil end
    if not two then previous = 0 end
    if stored == slot then return slot, current, previous, true end
    if stored == slot - 1 then return slot, 0, two and current or 0, false end
    if stored < slot then return slot, 0, 0, false end
  end

  -- How many more a rate has room for; below 1 there is none.
  local function room_of(r, current, previous)
    local room = rate_requests[r] - current
    if room < 1 or previous == 0 then return room end
    return room - share(previous, rate_rest[r], rate_period[r])
  end

  -- What is known of such a counter from now on.
  local function note(key, r, slot, current, previous, same)
    if s_rate[key] == nil then s_keys[#s_keys + 1] = key end
    s_rate[key], s_slot[key], s_current[key], s_previous[key], s_same[key] = r, slot, current, previous, same
  end

  local byte, sub, rep = string.byte, string.sub, string.rep
  local MAX_COUNT, MAX_PERIOD, MAX_FOREIGN, MAX_BYTES, MAX_INSTANTS = 1099511627776, 31622400000, 8, 1048576, 10000
  local SPREAD, FIRST, LOG, ARRIVAL, WARM_UP, OVER = 1536, 2048, 2560, 3072, 3584, 4096
  local HOLDERS, MAX_HOLDERS, MAX_CONCURRENT = 4608, 1000, 1000000

  -- Records of all keys side by side, four cells each: tag, slot, current, previous; n cells are taken. They are
  -- filled one by one, as a multiple assignment begins at its right end, where a table cannot grow as an array.
  local rec, n = {}, 0
  -- What few records have, by their first cell: counts of more than two slots (a table that is never changed) or instants
  -- (a string); since when a soft rate is over its number, and the end of its last slot above it.
  local tails, sinces, lasts = {}, {}, {}
  -- Keys, five cells each: where the first record stands (or -1 and -2 for what is no counter), where the last one; of
  -- the value that was read the length, and its records' latest end, which is also when the key expires; whether it is
  -- to be written. They are in info.

  local function ends_of(i, tag, slot)
    local kind = tag % 8192
    local period, e = (tag - kind) / 8192, nil
    if kind < ONE_WINDOW then
      local slots = (kind - 512) / 8
      e = (slot + slots + 1) * (period / slots)
    elseif kind < FIRST then e = (slot + 1) * period
    elseif kind < ARRIVAL then e = slot + period
    elseif kind == ARRIVAL or kind == HOLDERS then e = slot + 1
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
      if count > 0 and unpack('<I6', value, pos + 14) ~= slot then return nil end
      rec[n + 1] = tag
      rec[n + 2] = slot
      rec[n + 3] = 0
      rec[n + 4] = 0
      tails[n + 1] = sub(value, pos + 14, stop)
      n = n + 4
      return stop + 1
    end
    if kind == HOLDERS then
      if width ~= 6 or pos + 13 > length then return nil end
      local tag, slot, count = unpack('<I6I6I2', value, pos)
      tag = tag - 6
      period = (tag - kind) / 8192
      local stop = pos + 13 + 16 * count
      if count > MAX_HOLDERS or stop > length or period < 1 or period > MAX_PERIOD then return nil end
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

  -- What the records of other windows by the clock prove of a rate that has none: of each slot, from the newest, the largest
  -- count that one of them shows within it. False if that is nothing.
  local function proven(tag, from, to)
    local kind = tag % 8192
    if kind > ONE_WINDOW or to < from or find(tag, from, to) then return false end
    local slots, length = kind < ONE_WINDOW and (kind - 512) / 8 or 0, (tag - kind) / 8192
    if slots > 1 then length = length / slots end
    local newest, most = (now - now % length) / length, false
    for i = from, to, 4 do
      local kind = rec[i] % 8192
      if kind <= ONE_WINDOW then
        local kept = kind < ONE_WINDOW and (kind - 512) / 8 or 0
        local period = (rec[i] - kind) / 8192
        local own, slot = kept > 1 and period / kept or period, rec[i + 1]
        local last, all = (now - now % own) / own, nil
        if slot > last + (kept > 1 and kept or 1) then
          -- As it will be rebased.
          all = rec[i + 2] + rec[i + 3]
          for n = 2, kept do all = all + tails[i][n - 1] end
          slot, kept = last, 0
        end
        if slot <= last and slot >= kept then
          local sums = {}
          for n = 0, kept do
            local count = all or n == 0 and rec[i + 2] or n == 1 and rec[i + 3] or tails[i][n - 1]
            if count > MAX_COUNT then count = MAX_COUNT end
            local begin = (slot - n) * own
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

  -- Holders at now: their bytes without those who have not renewed, the latest end, how many places they hold, how many
  -- they are, and where the one that is asked for stands, or nil.
  local function roll_holders(i, ttl, holder)
    local all, live, latest, used, count, own = i and tails[i] or '', {}, 0, 0, 0, nil
    for at = 1, #all, 16 do
      local who, places, ends = unpack('<I6I4I6', all, at)
      if places > 0 and ends > now then
        if ends > now + ttl then ends = now + ttl end
        if ends > latest then latest = ends end
        used, count = used + places, count + 1
        if who == holder and not own then own = count end
        live[count] = pack('<I6I4I6', who, places, ends)
      end
    end
    return live, latest, used, count, own
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

  -- Rolls the record of a rate with parameters, which stand behind p, into the cells after m; returns how many of the
  -- callers it admits.
  local function other(requests, tag, p, k, from, to, cost, admitted, m)
    local p1, p2, p3 = a[p + 1], a[p + 2], a[p + 3]
    local kind = tag % 8192
    local period = (tag - kind) / 8192
    local i = find(tag, from, to)
    local slot, current, previous, room
    if kind < LOG then
      local t, length, slots, tail, since, last
      t, length, slots, slot, current, previous, tail, since, last =
        roll_window(i, kind, period, kind == SPREAD and now + p1 or now)
      local begun = proven(tag, from, to)
      if begun then
        current, previous = begun[0] or 0, begun[1] or 0
        for n = 2, slots do tail[n - 1] = begun[n] or 0 end
      end
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
      slot, current, previous = roll_arrival(i, requests, a[p + 5])
      rebase(i, k, slot, current, previous)
      local ahead, rest = slot * 1000 + previous - micros, current
      if ahead < 0 then ahead, rest = 0, 0 end
      local span, part = p3, a[p + 4]
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
    elseif kind == HOLDERS then
      local live, latest, used, count, own = roll_holders(i, p2, p1)
      slot, current, previous = latest, 0, 0
      room = requests - used
      if not own and count >= MAX_HOLDERS then room = 0 end
      if count > 0 and rebase(i, k, slot, 0, 0) then tails[i] = table.concat(live) end
      r_tails[m], r_used[m], r_now[m] = live, used, own
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
  local function charge(requests, tag, p, m, cost, admitted, callers)
    local kind = tag % 8192
    local period = (tag - kind) / 8192
    local slot, current, previous, add = rolled[m + 1], rolled[m + 2], rolled[m + 3], admitted * cost
    if kind < LOG then
      if add > 0 then
        current = current + add
        if current > MAX_COUNT then current = MAX_COUNT end
        if a[p + 3] > 0 and r_used[m] + add > requests then
          local t = r_now[m]
          if r_sinces[m] == 0 or r_sinces[m] > t or t >= r_lasts[m] + period then r_sinces[m] = t end
          if kind == FIRST then r_lasts[m] = slot + period
          else r_lasts[m] = (slot + 1) * (kind < ONE_WINDOW and period / ((kind - 512) / 8) or period) end
        end
      end
    elseif kind == LOG then
      if a[p + 2] == 1 then add = add + (callers - admitted) * (cost < 1 and 1 or cost) end
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
        local r = admitted * a[p + 4]
        local over = r % requests
        ahead, rest = ahead + admitted * a[p + 3] + (r - over) / requests, rest + over
        if rest >= requests then ahead, rest = ahead + 1, rest - requests end
        previous, current = (micros + ahead) % 1000, rest
        slot = (micros + ahead - previous) / 1000
      end
    elseif kind == HOLDERS then
      local live, own = r_tails[m], r_now[m]
      if add > 0 then
        local places, ends = add, now + a[p + 2]
        if own then
          local _, before = unpack('<I6I4', live[own])
          places = before + add
        else
          own = #live + 1
        end
        live[own] = pack('<I6I4I6', a[p + 1], places, ends)
        if ends > slot then slot = ends end
        r_used[m] = r_used[m] + add
      end
      r_tails[m] = table.concat(live)
    elseif add > 0 then
      local wait, left = warm_up(requests, period, a[p + 1], a[p + 2], current, cost)
      current = left
      local part = (previous + wait) % 256000
      slot, previous = slot + (previous + wait - part) / 256000, part
    end
    return slot, current, previous
  end

  -- Corrects what was charged; p is where the settlement's index stands. Returns whether it changed anything.
  local function settle(p, from, to)
    local charged, more, less, limit = a[p + 1], a[p + 2], a[p + 3], a[p + 4]
    local instant = (charged - charged % 1000) / 1000
    local changed = false
    p = p + 4
    for r = first[limit], first[limit + 1] - 1 do
      local requests, tag, p1 = rate_requests[r], rate_tag[r], a[p + 1]
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
          local slot, rest, part = roll_arrival(i, requests, a[p + 5])
          local tat, span, over, per = slot * 1000 + part, a[p + 3], a[p + 4], requests < 1 and 1 or requests
          if less > more then
            local before, left = tat - span, rest - over
            if left < 0 then before, left = before - 1, left + per end
            if before < 0 then before, left = 0, 0 end
            -- Of a leaky bucket only the last reservation can be given back.
            if p1 == 0 or before + (left > 0 and 1 or 0) == charged then tat, rest = before, left end
          elseif more > less then
            tat, rest = tat + span, rest + over
            if rest >= per then tat, rest = tat + 1, rest - per end
          end
          part = tat % 1000
          rec[i + 1], rec[i + 2], rec[i + 3] = (tat - part) / 1000, rest, part
        elseif kind == HOLDERS then
          local ttl = a[p + 2]
          local live, _, _, count, own = roll_holders(i, ttl, p1)
          if own then
            local _, places = unpack('<I6I4', live[own])
            places = places + more - less
            if places > MAX_CONCURRENT then places = MAX_CONCURRENT end
            if places > 0 then live[own] = pack('<I6I4I6', p1, places, now + ttl) else table.remove(live, own) end
          end
          local latest = 0
          for at = 1, #live do
            local ends = unpack('<I6', live[at], 11)
            if ends > latest then latest = ends end
          end
          rec[i + 1], tails[i] = latest, table.concat(live)
        else
          local slot, stored, part = roll_warm_up(i, period, p1 * 256, a[p + 2])
          part = less > more and part - a[p + 3] or part + a[p + 3]
          local left = part % 256000
          slot, part = slot + (part - left) / 256000, left
          if slot < 0 then slot, part = 0, 0 end
          rec[i + 1], rec[i + 2], rec[i + 3] = slot, stored, part
        end
      end
      p = p + 5
    end
    return changed
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

  -- The bytes of a record that is neither of two windows nor of one, or is soft.
  local function encode_other(i, kind, tag, slot, current, previous)
    local bytes
    if kind == LOG then
      return pack('<I6I6I2', tag + 6, slot, #tails[i] / 6) .. tails[i]
    end
    if kind == HOLDERS then
      return pack('<I6I6I2', tag + 6, slot, #tails[i] / 16) .. tails[i]
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

  local function load(key)
    local value, ends, from, start, at = values[key], 0, n + 1, n, key * 5
    local r = s_rate[key]
    if r then
      -- The value's own records are of no interest any more, but what is compared with them at the end is.
      s_rate[key] = false
      rec[n + 1], rec[n + 2], rec[n + 3], rec[n + 4] = rate_tag[r], s_slot[key], s_current[key], s_previous[key]
      n = n + 4
      info[at - 4], info[at - 3] = from, n - 3
      info[at - 2] = value and #value or 0
      info[at - 1] = s_same[key] and ends_of(0, rate_tag[r], s_slot[key]) or 0
      info[at] = true
      return from
    end
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

  -- Decides a check; p is where its first counter stands. Counters are triples of index, cost and limit, or pairs of index
  -- and limit. Returns the position after it, or an error; how many are admitted; and what is no counter.
  local function check(p, counters, callers, pairs)
    local admitted, bad, m = callers, nil, 0
    for c = 1, counters do
      local key, cost, limit = a[p], a[p + 1], a[p + 2]
      if pairs then cost, limit, p = 1, cost, p + 2 else p = p + 3 end
      if key > named then named = key end
      local k = key * 5
      local from = info[k - 4] or load(key)
      if type(from) == 'table' then return from end
      local first, last = first[limit], first[limit + 1] - 1
      if from < 0 then
        bad = bad or from
        for r = first, last do
          if rate_flag[r] then p = p + 5 end
        end
      else
        local to = info[k - 3]
        for r = first, last do
          local requests, tag = rate_requests[r], rate_tag[r]
          if rate_flag[r] then
            admitted, rolled[m + 1], rolled[m + 2], rolled[m + 3] =
              other(requests, tag, p - 1, k, from, to, cost, admitted, m)
            p = p + 5
          else
            local period, slot = rate_period[r], rate_slot[r]
            local two = tag % 8192 == TWO_WINDOWS
            local current, previous = 0, 0
            for i = from, to, 4 do
              if rec[i] == tag then
                local stored = rec[i + 1]
                if stored == slot then
                  current, previous = rec[i + 2], rec[i + 3]
                elseif stored == slot - 1 then
                  if two then previous = rec[i + 2] end
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
            local begun = proven(tag, from, to)
            if begun then current, previous = begun[0] or 0, begun[1] or 0 end
            local room = requests - current
            if previous > 0 then
              local rest = slot > rate_slot[r] and period or rate_rest[r]
              room = room - share(previous, rest, period)
            end
            if cost == 0 then
              if room < 1 then admitted = 0 end
            elseif cost * admitted > room then
              if room < cost then admitted = 0 else admitted = (room - room % cost) / cost end
            end
            rolled[m + 1] = slot
            rolled[m + 2] = current
            rolled[m + 3] = previous
          end
          m = m + 3
        end
      end
    end
    return p, admitted, bad
  end

  -- Charges a check and says how its counters stand.
  local function conclude(p, counters, callers, pairs, admitted)
    local m = 0
    for _ = 1, counters do
      local key, cost, limit = a[p], a[p + 1], a[p + 2]
      if pairs then cost, limit, p = 1, cost, p + 2 else p = p + 3 end
      local k, first, last = key * 5, first[limit], first[limit + 1] - 1
      local add, from, to = admitted * cost, info[k - 4], info[k - 3]
      local write = add > 0
      if not write and admitted < callers then
        -- A log that counts denials is written by them too.
        local q = p
        for r = first, last do
          if rate_flag[r] then
            if rate_tag[r] % 8192 == LOG and a[q + 1] == 1 then write = true end
            q = q + 5
          end
        end
      end
      local base, alone = n, false
      if write then
        info[k] = true
        -- If there are just the records of these rates, they are changed where they are.
        alone = to - from == 4 * (last - first)
        if alone then
          local i = from
          for r = first, last do
            if rec[i] ~= rate_tag[r] then alone = false break end
            i = i + 4
          end
        end
        if alone then
          base = from - 1
        else
          n, info[k - 4] = n + 4 * (last - first + 1), n + 1
        end
      end
      local i = base + 1
      for r = first, last do
        local tag = rate_tag[r]
        if rate_flag[r] then
          local kind = tag % 8192
          local requests = rate_requests[r]
          local slot, current, previous = charge(requests, tag, p - 1, m, cost, admitted, callers)
          if kind == LOG then
            local instants, used, c = r_tails[m], r_used[m], cost < 1 and 1 or cost
            out[o] = slot
            out[o + 1] = used
            out[o + 2] = (c <= requests and used > requests - c) and unpack('<I6', instants, (requests - c) * 6 + 1) or 0
          elseif kind == HOLDERS then
            out[o] = slot
            out[o + 1] = r_used[m]
            out[o + 2] = 0
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
          if kind < LOG and a[p + 2] > 0 then
            out[o] = r_sinces[m]
            out[o + 1] = r_lasts[m]
            o = o + 2
          end
          if write then
            rec[i] = tag
            rec[i + 1] = slot
            rec[i + 2] = current
            rec[i + 3] = previous
            if kind <= LOG or kind == HOLDERS then tails[i] = r_tails[m] end
            if kind < LOG and r_sinces[m] > 0 then sinces[i], lasts[i] = r_sinces[m], r_lasts[m] end
          end
          p = p + 5
        else
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

  -- A check the long way; p is where its first counter stands.
  local function decide(p, counters, callers, pairs)
    local begin, admitted, bad = p, nil, nil
    p, admitted, bad = check(begin, counters, callers, pairs)
    if type(p) == 'table' then return p end
    out[o] = bad or admitted
    o = o + 1
    if not bad then conclude(begin, counters, callers, pairs, admitted) end
    return p
  end

  -- A check of a run. Other keys may have been written by then: an error is this check's alone.
  local function ask_fully(p, counters, callers)
    if type(decide(p, counters, callers, true)) == 'table' then
      out[o] = -1
      o = o + 1
    end
  end

  ask = function(p, what)
    if what == 0 then
      local key = a[p]
      if key > named then named = key end
      local k = key * 5
      local from = info[k - 4] or load(key)
      if type(from) == 'table' then return from end
      if from > 0 and settle(p, from, info[k - 3]) then info[k] = true end
      out[o] = from < 0 and from or 0
      o = o + 1
      local limit = a[p + 4]
      return p + 5 + 5 * (first[limit + 1] - first[limit])
    end
    return decide(p + 2, a[p], a[p + 1], false)
  end

  -- The counters besides, by turn: key, limit, how they stand.
  local b_key, b_limit, b_slot, b_current, b_previous, b_same = {}, {}, {}, {}, {}, {}

  -- Reads them; false if one of them has to go the long way.
  local function read_besides()
    left, taken = 9007199254740992, 0
    for b = 1, besides do
      local r = first[b_limit[b]]
      local slot, current, previous, same = read(b_key[b], r)
      if not slot then return false end
      b_slot[b], b_current[b], b_previous[b], b_same[b] = slot, current, previous, same
      local room = room_of(r, current, previous)
      if room < left then left = room end
    end
    return true
  end

  -- The counters besides a run, which stand at p: how they stand; returns the position after them.
  begin_besides = function(p)
    for b = 1, besides do
      local key = a[p]
      if key > named then named = key end
      b_key[b], b_limit[b] = key, a[p + 1]
      p = p + 2
    end
    alike = read_besides()
    for b = 1, besides do
      if alike then
        out[o] = b_slot[b]
        out[o + 1] = b_current[b]
        out[o + 2] = b_previous[b]
        o = o + 3
      else
        out[o] = -1
        o = o + 1
        break
      end
    end
    return p
  end

  -- Says how they stand by now.
  note_besides = function()
    if taken == 0 then return end
    for b = 1, besides do
      note(b_key[b], first[b_limit[b]], b_slot[b], b_current[b] + taken, b_previous[b], b_same[b])
    end
    taken = 0
  end

  -- A check of a run the long way. The counters besides may have to go it from now on too.
  local function run_fully(key, limit, callers)
    note_besides()
    local at = stop + 1
    a[at], a[at + 1] = key, limit
    for b = 1, besides do
      a[at + 2 * b], a[at + 2 * b + 1] = b_key[b], b_limit[b]
    end
    ask_fully(at, 1 + besides, callers)
    alike = read_besides() and alike
  end

  -- A check of a run of a limit of one rate.
  any_one = function(limit, callers, key, value)
    local r = first[limit]
    local requests, tag, period, slot, rest = rate_requests[r], rate_tag[r], rate_period[r], rate_slot[r], rate_rest[r]
    local two = tag % 8192 == TWO_WINDOWS
    local ends = (slot + (two and 2 or 1)) * period
    local length, width, own, stored, current, previous = 0, 0, nil, nil, 0, 0
    if value then
      length = #value
      width = two and (length - 12) / 2 or length - 12
      if width >= 1 and width <= 6 and width % 1 == 0 then
        own, stored, current, previous =
          unpack(two and (formats_two[width] or format(true, width)) or formats_one[width] or format(false, width), value)
        if not two then previous = 0 end
      end
    end
    if value and (not own or own ~= tag + width or stored > slot) or not alike then
      return run_fully(key, limit, callers)
    end
    if stored ~= slot then
      -- Its window has ended, or it is new.
      previous = two and value and stored == slot - 1 and current or 0
      current = 0
    end
    local room, admitted = requests - current, 0
    if callers == 1 then
      if room >= 1 and left >= 1 then
        local x = previous * rest
        if x > 9007199254740992 then
          if room > long_share(previous, rest, period) then admitted = 1 end
        elseif x <= (room - 1) * period then
          admitted = 1
        end
      end
    elseif room >= 1 then
      if previous > 0 then room = room - share(previous, rest, period) end
      admitted = room >= callers and callers or room > 0 and room or 0
    end
    local good = true
    if admitted > 0 then
      current = current + admitted
      if stored == slot and current < 256 ^ width then
        -- SETRANGE keeps the time to live, and costs less.
        call('SETRANGE', keys[key], '12', pack('<I' .. width, current))
      else
        local most = current > previous and current or previous
        local width = width_of(most)
        local new
        if two then
          new = pack(formats_two[width] or format(true, width), tag + width, slot, current, previous)
        else
          new = pack(formats_one[width] or format(false, width), tag + width, slot, current)
        end
        if value then
          call('SET', keys[key], new, 'PXAT', ends)
        else
          -- If there is something else than a string it stays.
          good = call('SET', keys[key], new, 'PXAT', ends, 'NX')
        end
      end
    end
    if not good then
      out[o] = -1
      o = o + 1
    elseif callers > 1 then
      out[o] = admitted
      out[o + 1] = slot
      out[o + 2] = current
      out[o + 3] = previous
      o = o + 4
    else
      left = left - admitted
      taken = taken + admitted
      if previous < 536870912 and current < 1048576 then
        out[o] = -3 - ((previous * 1048576 + current) * 4 + admitted)
        o = o + 1
      else
        out[o] = -3 - (current * 4 + 2 + admitted)
        out[o + 1] = previous
        o = o + 2
      end
    end
  end

  -- How a value of just the records of a limit is laid out, as their tags say it: the format, the tags as they stand there,
  -- and what the counts have to stay below. Nil if it is not just those.
  local function layout(value, limit)
    local f, tags, tops, pos, length = '<', {}, {}, 1, #value
    for r = first[limit], first[limit + 1] - 1 do
      if pos + 5 > length then return nil end
      local own, two = unpack('<I6', value, pos), rate_tag[r] % 8192 == TWO_WINDOWS
      local width = own - rate_tag[r]
      if width < 1 or width > 6 then return nil end
      tags[#tags + 1], tops[#tops + 1] = own, 256 ^ width
      pos = pos + (two and 12 + 2 * width or 12 + width)
      f = f .. (two and 'I6I6I' .. width .. 'I' .. width or 'I6I6I' .. width)
    end
    return pos == length + 1 and f or nil, tags, tops
  end

  -- By limit and length of a value how it was laid out last, and which rates of a limit are of two windows.
  local shapes = {}

  -- A check of a run of a limit of several rates. If no window of its value had ended: the format, the tags, and what the counts
  -- have to stay below.
  any_many = function(limit, callers, key, value)
    local from, to = first[limit], first[limit + 1] - 1
    local tag_of, slot_of, requests_of, period_of, rest_of = rate_tag, rate_slot, rate_requests, rate_period, rate_rest
    local shape = shapes[limit]
    if not shape then
      shape = {{}, {}, {}, {}}
      for r = from, to do shape[1][r] = tag_of[r] % 8192 == TWO_WINDOWS end
      shapes[limit] = shape
    end
    local two_of, formats, tags_of, tops_of = shape[1], shape[2], shape[3], shape[4]
    local length, t, f, n = 0, nil, nil, nil
    if value then
      length = #value
      f = formats[length]
      for _ = 1, 2 do
        if f then
          t, n = {unpack(f, value)}, 1
          local at, tags = 1, tags_of[length]
          for r = from, to do
            if t[at] ~= tags[n] or t[at + 1] > slot_of[r] then t = nil break end
            at, n = two_of[r] and at + 4 or at + 3, n + 1
          end
        end
        if t then break end
        f, tags_of[length], tops_of[length] = layout(value, limit)
        formats[length] = f
      end
    end
    if value and not t or not alike then
      return run_fully(key, limit, callers)
    end
    local admitted, ends, was, at = left < 1 and 0 or callers, 0, 0, 1
    if not value then t = {} end
    for r = from, to do
      local slot, period, two = slot_of[r], period_of[r], two_of[r]
      local current, previous = t[at + 2], two and t[at + 3] or 0
      local e = (slot + (two and 2 or 1)) * period
      if e > ends then ends = e end
      if t[at + 1] ~= slot then
        -- Its window has ended, or it is new.
        local stored = t[at + 1]
        if value then
          e = (stored + (two and 2 or 1)) * period
          previous = two and stored == slot - 1 and current or 0
        else
          t[at], e = 0, 0
        end
        f, current = nil, 0
        t[at + 1], t[at + 2] = slot, 0
        if two then t[at + 3] = previous end
      end
      if e > was then was = e end
      if admitted > 0 then
        local room = requests_of[r] - current
        if room > 0 and previous > 0 then room = room - share(previous, rest_of[r], period) end
        if room < admitted then admitted = room > 0 and room or 0 end
      end
      at = two and at + 4 or at + 3
    end
    local good, begin, tops = true, o, f and tops_of[length]
    local like = f
    if callers > 1 then
      out[o] = admitted
      o = o + 1
    end
    at, n = 1, 1
    for r = from, to do
      local current, previous = t[at + 2] + admitted, two_of[r] and t[at + 3] or 0
      t[at + 2] = current
      if f and current >= tops[n] then f = nil end
      if callers > 1 then
        out[o] = slot_of[r]
        out[o + 1] = current
        out[o + 2] = previous
        o = o + 3
      elseif previous < 536870912 and current < 1048576 then
        out[o] = -3 - ((previous * 1048576 + current) * 4 + admitted)
        o = o + 1
      else
        out[o] = -3 - (current * 4 + 2 + admitted)
        out[o + 1] = previous
        o = o + 2
      end
      at, n = two_of[r] and at + 4 or at + 3, n + 1
    end
    if admitted > 0 and f then
      call('SETRANGE', keys[key], '0', pack(f, spread(t)))
    elseif admitted > 0 then
      f, at = '<', 1
      for r = from, to do
        local top = t[at + 2]
        if two_of[r] and t[at + 3] > top then top = t[at + 3] end
        local width = width_of(top)
        t[at] = tag_of[r] + width
        f = f .. (two_of[r] and 'I6I6I' .. width .. 'I' .. width or 'I6I6I' .. width)
        at = two_of[r] and at + 4 or at + 3
      end
      local new = pack(f, spread(t))
      if #new == length and ends == was then
        call('SETRANGE', keys[key], '0', new)
      elseif value then
        call('SET', keys[key], new, 'PXAT', ends)
      else
        good = call('SET', keys[key], new, 'PXAT', ends, 'NX')
      end
    end
    if not good then
      for at = begin + 1, o - 1 do out[at] = nil end
      out[begin] = -1
      o = begin + 1
    else
      left = left - admitted
      taken = taken + admitted
    end
    return like, tags_of[length], tops
  end

  write_all = function()
    for n = 1, #s_keys do
      local key = s_keys[n]
      local r = s_rate[key]
      if r then
        local tag, slot, current, previous = rate_tag[r], s_slot[key], s_current[key], s_previous[key]
        local two = tag % 8192 == TWO_WINDOWS
        local width, value = width_of(current > previous and current or previous), nil
        if two then
          value = pack(formats_two[width] or format(true, width), tag + width, slot, current, previous)
        else
          value = pack(formats_one[width] or format(false, width), tag + width, slot, current)
        end
        if s_same[key] and #value == #values[key] then
          call('SETRANGE', keys[key], '0', value)
        else
          call('SET', keys[key], value, 'PXAT', (slot + (two and 2 or 1)) * rate_period[r])
        end
      end
    end
    for k = 1, #keys do
      local at = k * 5
      if info[at] then
        local value, ends, one, two = nil, 0, nil, nil
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
          -- Most values are few records: they are put together at once.
          if not one then one = bytes
          elseif not two then two = bytes
          elseif not value then value = one .. two .. bytes
          else value = value .. bytes end
          if e > ends then ends = e end
        end
        value = value or (two and one .. two) or one
        -- SETRANGE keeps the time to live, and costs less.
        if #value == info[at - 2] and ends == info[at - 1] then
          call('SETRANGE', keys[k], '0', value)
        else
          call('SET', keys[k], value, 'PXAT', ends)
        end
      end
    end
  end
end

while p <= stop do
  local what = a[p]
  p = p + 1
  if what ~= 2 then
    if not ask then set_up() end
    p = ask(p, what)
    if type(p) == 'table' then return p end
  else
    local limit, callers, checks = a[p], a[p + 1], a[p + 2]
    besides = a[p + 3]
    p = p + 4
    left, taken, alike = 9007199254740992, 0, true
    if besides > 0 then
      if not ask then set_up() end
      p = begin_besides(p)
      if failed then return failed end
    end
    -- Of a value by its length: the format, how its records begin, what changes, and what a count has to stay below to keep its
    -- width and the short form of an answer. The next value is mostly like it.
    local like, whole, part
    local from, last = first[limit], named + checks
    local rates = first[limit + 1] - from
    if rates == 1 then
      local requests, period, slot, rest = rate_requests[from], rate_period[from], rate_slot[from], rate_rest[from]
      local tag, own1, top1 = rate_tag[from], nil, nil
      local two = tag % 8192 == TWO_WINDOWS
      local formats = two and formats_two or formats_one
      for key = named + 1, last do
        local value, quick = values[key], false
        if value and alike then
          local length = #value
          if length ~= like then
            like, whole = length, nil
            local width = two and (length - 12) / 2 or length - 12
            if width >= 1 and width <= 6 and width % 1 == 0 then
              whole, part = formats[width], parts[width]
              if not whole then
                whole = two and '<I6I6I' .. width .. 'I' .. width or '<I6I6I' .. width
                formats[width] = whole
              end
              if not part then
                part = '<I' .. width
                parts[width] = part
              end
              own1, top1 = tag + width, 256 ^ width
              if top1 > 1048576 then top1 = 1048576 end
            end
          end
          if whole then
            local own, stored, current, previous = unpack(whole, value)
            if not two then previous = 0 end
            if own == own1 and stored == slot and current + callers < top1 and previous < PREVIOUS then
              quick = true
              local admitted = 0
              if callers == 1 then
                if left >= 1 and previous * rest <= (requests - current - 1) * period then
                  admitted, current = 1, current + 1
                  call('SETRANGE', keys[key], '12', pack(part, current))
                  left, taken = left - 1, taken + 1
                end
                out[o] = -3 - ((previous * 1048576 + current) * 4 + admitted)
                o = o + 1
              else
                local x = previous * rest
                local over = x % period
                admitted = requests - current - (x - over) / period - (over > 0 and 1 or 0)
                admitted = admitted >= callers and callers or admitted > 0 and admitted or 0
                if admitted > 0 then
                  current = current + admitted
                  call('SETRANGE', keys[key], '12', pack(part, current))
                end
                out[o] = admitted
                out[o + 1] = slot
                out[o + 2] = current
                out[o + 3] = previous
                o = o + 4
              end
            end
          end
        end
        if not quick then
          if not ask then set_up() end
          any_one(limit, callers, key, value)
        end
      end
    else
      -- Two or three sliding windows of one caller need no loop.
      local few, three = callers == 1 and rates <= 3, rates == 3
      for r = from, from + rates - 1 do few = few and rate_tag[r] % 8192 == TWO_WINDOWS end
      local second, third = from + 1, from + rates - 1
      local slot1, slot2, slot3 = rate_slot[from], rate_slot[second], three and rate_slot[third] or nil
      local requests1, requests2, requests3 = rate_requests[from], rate_requests[second], rate_requests[third]
      local period1, period2, period3 = rate_period[from], rate_period[second], rate_period[third]
      local rest1, rest2, rest3 = rate_rest[from], rate_rest[second], rate_rest[third]
      local own1, own2, own3, head2, head3, top1, top2, top3
      for key = named + 1, last do
        local value, quick = values[key], false
        if value and #value == like and alike then
          local o1, s1, c1, p1, o2, s2, c2, p2, o3, s3, c3, p3 = unpack(whole, value)
          if o1 == own1 and s1 == slot1 and o2 == own2 and s2 == slot2 and o3 == own3 and s3 == slot3 then
            if not three then c3, p3 = c2, p2 end
            if c1 < top1 and c2 < top2 and c3 < top3 and p1 < PREVIOUS and p2 < PREVIOUS and p3 < PREVIOUS then
              quick = true
              local admitted = 0
              if left >= 1 and p1 * rest1 <= (requests1 - c1 - 1) * period1
                and p2 * rest2 <= (requests2 - c2 - 1) * period2
                and p3 * rest3 <= (requests3 - c3 - 1) * period3 then
                admitted, c1, c2, c3 = 1, c1 + 1, c2 + 1, c3 + 1
                call('SETRANGE', keys[key], '12', pack(part, c1, p1, head2, c2, p2, head3, c3))
                left, taken = left - 1, taken + 1
              end
              out[o] = -3 - ((p1 * 1048576 + c1) * 4 + admitted)
              out[o + 1] = -3 - ((p2 * 1048576 + c2) * 4 + admitted)
              o = o + 2
              if three then
                out[o] = -3 - ((p3 * 1048576 + c3) * 4 + admitted)
                o = o + 1
              end
            end
          end
        end
        if not quick then
          if not ask then set_up() end
          local f, tags, tops = any_many(limit, callers, key, value)
          if f and few then
            like, whole, own1, own2 = #value, f, tags[1], tags[2]
            local width1, width2 = own1 % 8, own2 % 8
            head2 = pack('<I6I6', own2, slot2)
            part = '<I' .. width1 .. 'I' .. width1 .. 'c12I' .. width2
            if three then
              own3 = tags[3]
              head3 = pack('<I6I6', own3, slot3)
              part = part .. 'I' .. width2 .. 'c12I' .. own3 % 8
            else
              -- What is read behind the last record is the position there, and no slot.
              own3 = #value + 1
            end
            top1, top2, top3 = tops[1], tops[2], tops[rates]
            if top1 > 1048576 then top1 = 1048576 end
            if top2 > 1048576 then top2 = 1048576 end
            if top3 > 1048576 then top3 = 1048576 end
            top1, top2, top3 = top1 - 1, top2 - 1, top3 - 1
          end
        end
      end
    end
    if besides > 0 then note_besides() end
    named = last
  end
end

if write_all then write_all() end
return out

-- Decides runs of checks. The checks of a run have the same limits and a cost of 1. Each has one counter of its own, whose limit
-- may have several rates, and they may share further counters, whose limits have one rate. All rates are fixed windows on the
-- clock or sliding windows without sub-windows. What this script computes is defined in Rust, as for the general script.
--
-- KEYS     for each run the keys of the shared counters, then the own key of each check. No own key occurs twice
-- ARGV[1]  for each run: the deadline in milliseconds of this server's clock (6 bytes), how many callers send each check, how
--          many checks there are (2 bytes each), the number of rates of the own counter, the number of shared counters
--          (1 byte each); then for each of these rates and counters the number of requests and the tag (6 bytes each); then for
--          the own counter and each shared one how many keys of its limit a partition takes (4 bytes each), or 0
-- reply    this server's time in microseconds; then for each run the current and previous counts of the shared counters before
--          its checks, which grow by 1 with each admitted caller; then for each check the number of admitted callers, and for
--          each own rate the current and previous count afterwards. Instead of the number of callers, -1 if the check was not
--          decided and nothing written for it, for the reasons of the plain script, or because a shared counter has one of
--          them. A new key in a full partition is not decided either. If the own key is new or its value has a new expiry, and
--          the number of keys is limited, 65536 times the number of keys in the partition is added to the number of callers; and
--          2^48 if the key was created. To the current count of a shared counter that has no key yet, 2^48 is added.
--          After the deadline only the time is returned, and nothing is written.
local call, pack, unpack, spread, arguments, keys = redis.call, struct.pack, struct.unpack, unpack, ARGV[1], KEYS
local time, at, first_key, reply, r = call('TIME'), 1, 0, nil, 1
local micros = time[1] * 1000000 + time[2]
local now = (micros - micros % 1000) / 1000
reply = {micros}

-- The rates of a run: first those of the own counter, then those of the shared ones.
local requests, tags, windows, periods, rests, slots = {}, {}, {}, {}, {}, {}
local registries
-- The layout of the value that was read last: its length and its format, and for each rate the tag with the width, and the
-- smallest count that needs a greater width. The next value mostly has the same layout.
local length, format, own, top

-- Sets the layout to that of a value; returns whether the value consists of exactly the records of these rates.
local function layout(value, from, to)
  local at = 1
  length, format, own, top = nil, '<', {}, {}
  for n = from, to do
    if at + 5 > #value then return false end
    own[n] = unpack('<I6', value, at)
    local width = own[n] - tags[n]
    if width < 1 or width > 6 then return false end
    top[n] = 256 ^ width
    format = format .. 'I6I6' .. string.rep('I' .. width, windows[n])
    at = at + 12 + windows[n] * width
  end
  if at ~= #value + 1 then return false end
  length = #value
  return true
end

-- Returns the registry of a key. Its slots are as long as the longest of these windows.
local function registry_of(key, from, to)
  registries = registries or make_registries(now)
  return registries.open(key, math.max(spread(periods, from, to)))
end

-- Reads a counter. Returns its numbers, rolled to now: for each rate the tag, the slot and one or two counts; how many of the
-- callers find room; whether the value can be changed in place; and its expiry, which is 0 for a new key. Returns nil if the
-- counter cannot be decided here.
local function open(key, value, from, to, callers, most)
  if not value and most > 0 and registry_of(key, from, to).keys >= most then return nil end
  if value and #value ~= length and not layout(value, from, to) then return nil end
  local numbers, at, same, ends = value and {unpack(format, value)} or {}, 1, value, 0
  for n = from, to do
    local two, stored, current, previous = windows[n] == 2, numbers[at + 1], numbers[at + 2], 0
    if two then previous = numbers[at + 3] end
    if value and numbers[at] ~= own[n] then
      -- A record of another rate or width, in a value of the same length.
      if not layout(value, from, to) then return nil end
      return open(key, value, from, to, callers, most)
    end
    if value then ends = math.max(ends, (stored + windows[n]) * periods[n]) end
    if stored ~= slots[n] then
      if value and stored > slots[n] then return nil end
      previous = value and two and stored == slots[n] - 1 and current or 0
      current, same = 0, false
      numbers[at] = 0
      numbers[at + 1] = slots[n]
      numbers[at + 2] = 0
      if two then numbers[at + 3] = previous end
    end
    local share = previous * rests[n]
    if share >= 9007199254740992 then return nil end
    local over = share % periods[n]
    local room = requests[n] - current - (share - over) / periods[n]
    if over > 0 then room = room - 1 end
    if room < callers then callers = room > 0 and room or 0 end
    at = at + 2 + windows[n]
  end
  return numbers, callers, same, ends
end

-- Charges a counter and writes it. Returns nothing if the key holds something other than a string, and otherwise the number
-- of keys in its partition if it was counted now, or 0; and 2^32 more if it was created.
local function charge(key, value, numbers, admitted, same, from, to, before, most)
  local at, format_now, ends = 1, '<', 0
  for n = from, to do
    numbers[at + 2] = numbers[at + 2] + admitted
    if same and numbers[at + 2] >= top[n] then same = false end
    at = at + 2 + windows[n]
  end
  if same then
    -- SETRANGE keeps the time to live, and costs less than SET.
    return call('SETRANGE', key, '0', pack(format, spread(numbers))) and 0
  end
  at = 1
  for n = from, to do
    local count = numbers[at + 2]
    if windows[n] == 2 and numbers[at + 3] > count then count = numbers[at + 3] end
    local width = count < 256 and 1 or count < 65536 and 2 or count < 16777216 and 3 or count < 4294967296 and 4
      or count < 1099511627776 and 5 or 6
    numbers[at] = tags[n] + width
    format_now = format_now .. 'I6I6' .. string.rep('I' .. width, windows[n])
    ends = math.max(ends, (slots[n] + windows[n]) * periods[n])
    at = at + 2 + windows[n]
  end
  local new = pack(format_now, spread(numbers))
  if value then
    call('SET', key, new, 'PXAT', ends)
  elseif not call('SET', key, new, 'PXAT', ends, 'NX') then
    return nil
  end
  local created = value and 0 or 4294967296
  if most == 0 or ends == before then return created end
  local registry = registry_of(key, from, to)
  registries.replace(registry, before, ends)
  return created + registry.keys
end

while at <= #arguments do
  local deadline, callers, checks, rates, shared
  deadline, callers, checks, rates, shared, at = unpack('<I6I2I2BB', arguments, at)
  if now > deadline then return reply end
  local quick = callers == 1 and rates <= 3
  for n = 1, rates + shared do
    requests[n], tags[n], at = unpack('<I6I6', arguments, at)
    windows[n] = tags[n] % 8192 == 520 and 2 or 1
    periods[n] = (tags[n] - tags[n] % 8192) / 8192
    rests[n] = periods[n] - now % periods[n]
    slots[n] = (now + rests[n]) / periods[n] - 1
    quick = quick and (n > rates or windows[n] == 2)
  end
  local most = {}
  for n = 0, shared do
    most[n], at = unpack('<I4', arguments, at)
  end
  local values = call('MGET', spread(keys, first_key + 1, first_key + shared + checks))

  -- How many callers the shared counters have room for; nil if one of them cannot be decided here.
  local left, taken, numbers_of, same_of, ends_of = callers * checks, 0, {}, {}, {}
  for n = 1, shared do
    length = nil
    -- MGET also returns nothing for a value that is no string.
    if not values[n] and type(redis.pcall('GET', keys[first_key + n])) == 'table' then left = nil end
    if left then
      numbers_of[n], left, same_of[n], ends_of[n] = open(keys[first_key + n], values[n], rates + n, rates + n, left, most[n])
    end
    reply[r + 1] = left and numbers_of[n][3] + (values[n] and 0 or 281474976710656) or 0
    reply[r + 2] = left and windows[rates + n] == 2 and numbers_of[n][4] or 0
    r = r + 2
  end
  length = nil

  local requests1, requests2, requests3 = requests[1], requests[2], requests[3]
  local slot1, slot2, slot3, rest1, rest2, rest3 = slots[1], slots[2], slots[3], rests[1], rests[2], rests[3]
  local period1, period2, period3 = periods[1], periods[2], periods[3]
  local known, own1, own2, own3, top1, top2, top3, head2, head3, changed
  for k = shared + 1, shared + checks do
    local key, value, decided = keys[first_key + k], values[k], false
    if value and #value == known then
      -- Up to three sliding windows that have not ended, in the layout of the value before: this is nearly every check, and
      -- without loops it takes a quarter less time.
      local o1, s1, c1, p1, o2, s2, c2, p2, o3, s3, c3, p3 = unpack(format, value)
      decided = o1 == own1 and s1 == slot1 and c1 < top1 and p1 < 262144
      local room = left >= 1 and decided and p1 * rest1 <= (requests1 - c1 - 1) * period1
      if decided and rates > 1 then
        decided = o2 == own2 and s2 == slot2 and c2 < top2 and p2 < 262144
        room = room and decided and p2 * rest2 <= (requests2 - c2 - 1) * period2
        if decided and rates > 2 then
          decided = o3 == own3 and s3 == slot3 and c3 < top3 and p3 < 262144
          room = room and decided and p3 * rest3 <= (requests3 - c3 - 1) * period3
        end
      end
      if decided then
        if room then
          c1, left, taken = c1 + 1, left - 1, taken + 1
          if rates == 1 then
            call('SETRANGE', key, '12', pack(changed, c1))
          elseif rates == 2 then
            c2 = c2 + 1
            call('SETRANGE', key, '12', pack(changed, c1, p1, head2, c2))
          else
            c2, c3 = c2 + 1, c3 + 1
            call('SETRANGE', key, '12', pack(changed, c1, p1, head2, c2, p2, head3, c3))
          end
        end
        reply[r + 1] = room and 1 or 0
        reply[r + 2] = c1
        reply[r + 3] = p1
        if rates > 1 then
          reply[r + 4] = c2
          reply[r + 5] = p2
        end
        if rates > 2 then
          reply[r + 6] = c3
          reply[r + 7] = p3
        end
        r = r + 1 + 2 * rates
      end
    end
    if not decided then
      local numbers, admitted, same, ends
      if left then
        numbers, admitted, same, ends = open(key, value, 1, rates, left < callers and left or callers, most[0])
      end
      local counted = 0
      if numbers and admitted > 0 then
        counted = charge(key, value, numbers, admitted, same, 1, rates, ends, most[0])
        if counted then
          left, taken = left - admitted, taken + admitted
        else
          numbers = nil
        end
      end
      reply[r + 1] = numbers and admitted + 65536 * counted or -1
      r = r + 1
      local n1 = 1
      for n = 1, rates do
        reply[r + 1] = numbers and numbers[n1 + 2] or 0
        reply[r + 2] = numbers and windows[n] == 2 and numbers[n1 + 3] or 0
        r = r + 2
        n1 = n1 + 2 + windows[n]
      end
      known = quick and left and length
      if known then
        own1, own2, own3, top1, top2, top3 = own[1], own[2], own[3], top[1] - 1, nil, nil
        changed = '<I' .. own1 % 8
        if rates > 1 then
          head2, top2 = pack('<I6I6', own2, slot2), top[2] - 1
          changed = changed .. 'I' .. own1 % 8 .. 'c12I' .. own2 % 8
        end
        if rates > 2 then
          head3, top3 = pack('<I6I6', own3, slot3), top[3] - 1
          changed = changed .. 'I' .. own2 % 8 .. 'c12I' .. own3 % 8
        end
      end
    end
  end

  for n = 1, taken > 0 and shared or 0 do
    if same_of[n] then layout(values[n], rates + n, rates + n) end
    charge(keys[first_key + n], values[n], numbers_of[n], taken, same_of[n], rates + n, rates + n, ends_of[n], most[n])
  end
  first_key = first_key + shared + checks
end
if registries then registries.write() end
return reply

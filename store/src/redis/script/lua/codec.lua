-- The codec of records: reads the values of keys, and encodes records as the bytes that are written.
-- Uses the head. Defines the table of records, `find`, `load`, `ends_of` and `encode`.

-- All records that were read or charged, four numbers each, beginning at index i: tag, slot, current count, previous count.
local record, records = {}, 0
-- What only some records have, by the same index: counts of further slots (a table that is never changed), or the bytes of
-- instants or holders; the begin and the end of the time that a soft rate was above its number.
local tails, sinces, lasts = {}, {}, {}
-- By the index of a key: its first record (-1 if it holds no string, -2 if the string does not consist of records), its last
-- record, the size of the value that was read, the time at which that value expires, and whether it must be written.
local first_record, last_record, size_of, expiry_of, changed = {}, {}, {}, {}, {}

-- By the index of a key: the length of the slots in which it is counted, if it is. What the reply says about new keys.
local grid_of_key, notes = {}, {}

-- A release writes at most 16 records into a value, and a reset leaves at most MAX_EMPTIED without usage. Decisions look through all
-- of them.
local MAX_BYTES, MAX_HOLDERS, MAX_RESERVATIONS, MAX_RECORDS, MAX_EMPTIED = 1048576, 1000, 1000, 64, 16
-- By the layout of a record with a list: the bytes of an element, and the largest number of elements.
local bytes_of = {[LOG] = 6, [CONCURRENCY] = 16, [BLOCK] = 6, [RESERVATIONS] = 26}
local most_in = {[LOG] = 10000, [CONCURRENCY] = MAX_HOLDERS, [BLOCK] = 1000, [RESERVATIONS] = MAX_RESERVATIONS}

local values = #keys > 0 and call('MGET', spread(keys))

-- Returns the registry that counts a key.
local registries
local function registry_of(key)
  registries = registries or make_registries(now)
  return registries.open(keys[key], grid_of_key[key])
end

-- Returns the number of previous slots of a kind of windows, and the length of a slot.
local function slots_of(kind, period)
  local slots = kind < ONE_WINDOW and (kind - 512) / 8 or 0
  return slots, slots > 1 and period / slots or period
end

-- Returns the time from which a record no longer changes a decision.
local function ends_of(i, tag, slot)
  local kind = tag % 8192
  local period, ends = (tag - kind) / 8192, nil
  if kind < FIRST_REQUEST then
    local slots, length = slots_of(kind, period)
    ends = (slot + slots + 1) * length
  elseif kind < BUCKET then ends = slot + period
  elseif kind >= WARM_UP and kind < SOFT then ends = slot + 3600001
  else ends = slot + 1 end
  local last = lasts[i]
  if last and last + period > ends then ends = last + period end
  return ends
end

-- Returns the index of the record with a tag among those from `from` to `to`.
local function find(tag, from, to)
  for i = from, to, 4 do
    if record[i] == tag then return i end
  end
end

local function append(tag, slot, current, previous, tail, since, last)
  record[records + 1] = tag
  record[records + 2] = slot
  record[records + 3] = current
  record[records + 4] = previous
  records = records + 4
  tails[records - 3], sinces[records - 3], lasts[records - 3] = tail, since, last
end

-- Returns the formats of one and of two counts with a width, and of records with them.
local formats = {}
local function formats_of(width)
  local found = formats[width]
  if not found then
    local one, two = 'I' .. width, 'I' .. width .. 'I' .. width
    found = {'<' .. one, '<' .. two, '<I6I6' .. one, '<I6I6' .. two}
    formats[width] = found
  end
  return found
end

-- Reads the record at `at` and appends it; `first` is the index of the value's first record. Returns the position after it,
-- or nil if there is no valid record.
local function read(value, at, first)
  local size = #value
  if at + 12 > size then return nil end
  local tag, slot = unpack('<I6I6', value, at)
  local width = tag % 8
  tag = tag - width
  local kind = tag % 8192
  local layout, period = kind - kind % 512, (tag - kind) / 8192
  if width == 0 or width == 7 or period < 1 or period > MAX_PERIOD then return nil end
  local most = most_in[layout]
  if most then
    if width ~= 6 or at + 13 > size then return nil end
    local count, each = unpack('<I2', value, at + 12), bytes_of[layout]
    local last = at + 13 + each * count
    if count > most or last > size then return nil end
    if layout == LOG and count > 0 and unpack('<I6', value, at + 14) ~= slot then return nil end
    append(tag, slot, 0, 0, sub(value, at + 14, last))
    return last + 1
  end
  if kind == SOFT then
    -- The record of a soft rate's time above its number follows the record of the rate.
    local i = records - 3
    if i < first or record[i] % 8192 >= LOG or (record[i] - record[i] % 8192) / 8192 ~= period or sinces[i]
      or at + 11 + width > size then return nil end
    sinces[i], lasts[i] = slot, slot + unpack('<I' .. width, value, at + 12)
    return at + 12 + width
  end
  local slots, counts, tail = 0, 2, nil
  if kind >= 520 and kind <= 992 then
    slots = (kind - 512) / 8
    counts = slots + 1
  elseif kind == ONE_WINDOW or kind == SPREAD or layout == FIRST_REQUEST then counts = 1
  elseif layout ~= BUCKET and layout ~= WARM_UP then return nil end
  if at + 11 + counts * width > size or slots > 1 and period % slots > 0 then return nil end
  local current, previous = unpack(formats_of(width)[counts > 1 and 2 or 1], value, at + 12)
  if slots > 1 then
    tail = {unpack('<' .. rep('I' .. width, slots - 1), value, at + 12 + 2 * width)}
    -- unpack also returns the position after the last count.
    tail[slots] = nil
  end
  append(tag, slot, current, counts > 1 and previous or 0, tail)
  return at + 12 + counts * width
end

-- Reads the records of a key. Returns the index of the first one, or -1 or -2, or an error.
local function load(key)
  local value, first, expiry = values[key], records + 1, 0
  if not value then
    -- MGET returns nothing for a value that is no string.
    value = redis.pcall('GET', keys[key])
    if type(value) == 'table' then
      if sub(value.err, 1, 9) ~= 'WRONGTYPE' then return value end
      first_record[key] = -1
      return -1
    end
  end
  local at, size = 1, value and #value or 0
  while at and at <= size do
    at = size <= MAX_BYTES and (records - first + 1) / 4 < MAX_RECORDS and read(value, at, first) or nil
    if at then
      local ends = ends_of(records - 3, record[records - 3], record[records - 2])
      if ends > expiry then expiry = ends end
    end
  end
  if not at then
    records, first_record[key] = first - 1, -2
    return -2
  end
  first_record[key], last_record[key], size_of[key], expiry_of[key] = first, records - 3, size, expiry
  return first
end

local function width_of(count)
  return count < 256 and 1 or count < 65536 and 2 or count < 16777216 and 3 or count < 4294967296 and 4
    or count < 1099511627776 and 5 or 6
end

-- Returns the bytes of a record.
local function encode(i)
  local tag, slot, current, previous, tail = record[i], record[i + 1], record[i + 2], record[i + 3], tails[i]
  local kind = tag % 8192
  local each = bytes_of[kind - kind % 512]
  if each then return pack('<I6I6I2', tag + 6, slot, #tail / each) .. tail end
  if current > MAX_COUNT then current = MAX_COUNT end
  if previous > MAX_COUNT then previous = MAX_COUNT end
  local two, top = kind < ONE_WINDOW or kind >= BUCKET, current
  if two and previous > top then top = previous end
  for k = 1, tail and #tail or 0 do
    if tail[k] > top then top = tail[k] end
  end
  local width, bytes = width_of(top), nil
  if tail then
    bytes = pack('<I6I6' .. rep('I' .. width, #tail + 2), tag + width, slot, current, previous, spread(tail))
  elseif two then
    bytes = pack(formats_of(width)[4], tag + width, slot, current, previous)
  else
    bytes = pack(formats_of(width)[3], tag + width, slot, current)
  end
  local since = sinces[i]
  if since and since > 0 then
    local lasted = lasts[i] - since
    if lasted < 0 then lasted = 0 elseif lasted > MAX_COUNT then lasted = MAX_COUNT end
    width = width_of(lasted)
    bytes = bytes .. pack('<I6I6I' .. width, tag - kind + SOFT + width, since, lasted)
  end
  return bytes
end


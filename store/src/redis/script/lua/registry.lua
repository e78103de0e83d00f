-- The registries of live keys: for each limit and partition, how many keys expire in which slot of time. What this part
-- computes is defined in Rust, by KeyRegistry of sluice-limiter. A registry holds the length of a slot in milliseconds and the
-- number of its first slot (6 bytes each), then 1 to 16 counts (4 bytes each). Anything else counts as an empty registry and is
-- replaced. Its key is that of a counter with `keys` instead of the hash, so it is in the same hash slot.
-- Defines `make_registries`, which is called when the first key is new: each function costs the call time.
local function make_registries(now)
  local call, pack, unpack, spread, rep = redis.pcall, struct.pack, struct.unpack, unpack, string.rep
  local all = {}

  -- Returns the registry of a counter's key as it is now, with slots of this length.
  local function open(key, grid)
    local name = string.match(key, '^.*:') .. 'keys'
    local found = all[name]
    if found and found.grid == grid then return found end
    local old, first, counts, size, new, changed = grid, 0, {}, 0, 0, false
    if found then
      old, first, counts, size, new, changed = found.grid, found.first, found.counts, found.size, found.new, found.changed
    else
      -- Of a value that is no string, and of an error, this is a table.
      local value = call('GET', name)
      size = type(value) == 'string' and (#value - 12) / 4 or 0
      if size < 1 or size > 16 or size % 1 > 0 then
        size = 0
      else
        old, first = unpack('<I6I6', value)
        counts = {unpack('<' .. rep('I4', size), value, 13)}
        local sum = 0
        for n = 1, size do sum = sum + counts[n] end
        if old == 0 or old * (first + 16) > 1125899906842624 or sum > 1073741824 then size = 0 end
      end
    end
    -- The number of keys includes new ones that are not among the counts yet.
    local registry = {grid = grid, first = (now - now % grid) / grid + 1, counts = {}, size = 0, keys = new, new = new, changed = changed}
    for n = 1, size do
      local count, ends = counts[n] or 0, (first + n - 1) * old
      if count > 0 and ends > now then
        -- The slot whose end is nearest.
        local at = 2 * ends + grid
        at = (at - at % (2 * grid)) / (2 * grid) - registry.first + 1
        at = math.max(math.min(at, 16), 1)
        registry.counts[at] = (registry.counts[at] or 0) + count
        registry.keys = registry.keys + count
        if at > registry.size then registry.size = at end
      end
    end
    all[name] = registry
    return registry
  end

  -- Moves a key from one expiry to another; the former one of a new key is 0.
  local function replace(registry, from, to)
    local grid, counts = registry.grid, registry.counts
    from = (from + (-from) % grid) / grid - registry.first + 1
    to = (to + (-to) % grid) / grid - registry.first + 1
    if from == to then return end
    registry.changed = true
    from, to = math.min(from, 16), math.min(to, 16)
    if from >= 1 and (counts[from] or 0) > 0 then
      counts[from] = counts[from] - 1
      registry.keys = registry.keys - 1
    end
    if to >= 1 then
      counts[to] = (counts[to] or 0) + 1
      registry.keys = registry.keys + 1
      if to > registry.size then registry.size = to end
    end
  end

  -- Writes what has changed. A registry that cannot be written, because its hash slot is moving, counts less.
  local function write()
    for name, registry in pairs(all) do
      local size = registry.size
      if registry.changed and size > 0 then
        for n = 1, size do registry.counts[n] = registry.counts[n] or 0 end
        local value = pack('<I6I6' .. rep('I4', size), registry.grid, registry.first, spread(registry.counts, 1, size))
        call('SET', name, value, 'PXAT', (registry.first + size - 1) * registry.grid)
      end
    end
  end

  return {open = open, replace = replace, write = write}
end


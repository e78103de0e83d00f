-- Writes the keys whose records have changed.
-- Uses the codec and the registries. Defines `write`.

local function write()
  for key = 1, #keys do
    if changed[key] then
      local value, expiry = nil, 0
      for i = first_record[key], last_record[key], 4 do
        local bytes, ends = encode(i), ends_of(i, record[i], record[i + 1])
        value = value and value .. bytes or bytes
        if ends > expiry then expiry = ends end
      end
      local grid = grid_of_key[key]
      if grid and (expiry + (-expiry) % grid) ~= (expiry_of[key] + (-expiry_of[key]) % grid) then
        local registry = registry_of(key)
        registries.replace(registry, expiry_of[key], expiry)
      end
      -- SETRANGE keeps the time to live, and costs less than SET.
      if not value then
        -- An end in the past removes a key, without the right to DEL.
        call('SET', keys[key], '', 'PXAT', '1')
      elseif #value == size_of[key] and expiry == expiry_of[key] then
        call('SETRANGE', keys[key], '0', value)
      else
        call('SET', keys[key], value, 'PXAT', expiry)
      end
    end
  end
  if registries then registries.write() end
end


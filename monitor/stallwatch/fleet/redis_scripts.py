"""What runs whole on the server, on its own clock: the scripts of redis_place. Each takes all it needs as ARGV."""

JOIN = """
local p, node, deserted, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local life, begun, left = tonumber(ARGV[7]), ARGV[8] == '1', tonumber(ARGV[9])
local time = redis.call('TIME')
local now, exactly = tonumber(time[1]), time[1] + time[2] / 1e6
local n = tonumber(redis.call('GET', p..'open') or '0')
local function looked(seconds) return redis.call('ZCOUNT', p..n..':members', now - seconds, '+inf') > 0 end
if n > 0 and not looked(deserted) then n = 0 end
if n > 0 and life then
  local opened = tonumber(redis.call('HGET', p..n..':board', 'opened') or '')
  if opened and exactly - opened > life and (begun or not looked(left)) then n = 0 end
end
if n == 0 then
  if tonumber(redis.call('GET', p..'last') or '0') < tonumber(ARGV[6]) then redis.call('SET', p..'last', ARGV[6]) end
  n = redis.call('INCR', p..'last')
  redis.call('SET', p..'open', n)
  redis.call('HSET', p..n..':board', 'opened', string.format('%.3f', exactly))
  redis.call('EXPIRE', p..n..':board', kept)
end
redis.call('EXPIRE', p..'last', ARGV[5])
redis.call('EXPIRE', p..'open', kept)
redis.call('ZADD', p..n..':members', now, node)
redis.call('EXPIRE', p..n..':members', kept)
return n
"""
PUT = """
local p, node, kept = ARGV[1], ARGV[2], ARGV[4]
redis.call('HSET', p..'summaries', node, ARGV[3])
redis.call('HINCRBY', p..'board', 'puts', 1)
redis.call('ZADD', p..'put_at', tonumber(redis.call('TIME')[1]), node)
redis.call('EXPIRE', p..'put_at', kept)
redis.call('EXPIRE', p..'summaries', kept)
redis.call('EXPIRE', p..'board', kept)
return 1
"""
AGES = """
return {redis.call('TIME')[1], redis.call('ZRANGE', ARGV[1]..'put_at', 0, -1, 'WITHSCORES')}
"""
LOOK = """
local p = ARGV[1]
local member = redis.call('ZSCORE', p..'members', ARGV[2]) and 1 or 0
redis.call('ZADD', p..'members', 'XX', tonumber(redis.call('TIME')[1]), ARGV[2])
return {redis.call('GET', p..'claim') or '',
        redis.call('HMGET', p..'board', 'puts', 'generation', 'told', 'report_revision', 'closed'), member}
"""
CLAIM = """
local p, node, kept = ARGV[1], ARGV[2], ARGV[4]
if redis.call('SET', p..'claim', node, 'NX', 'PX', ARGV[3]) then
  local generation = redis.call('HINCRBY', p..'board', 'generation', 1)
  redis.call('EXPIRE', p..'board', kept)
  return generation
end
return 0
"""
RENEW = """
local p, node = ARGV[1], ARGV[2]
if redis.call('GET', p..'claim') == node and redis.call('HGET', p..'board', 'generation') == ARGV[3] then
  return redis.call('PEXPIRE', p..'claim', ARGV[4])
end
return 0
"""
MARK = """
local p, kind = ARGV[1], ARGV[3]
local now = redis.call('HGET', p..'board', 'generation') or '0'
if ARGV[2] == '0' then
  if redis.call('HEXISTS', p..'board', kind) == 1 then return 0 end
elseif ARGV[2] ~= now then return 0 end
redis.call('HSET', p..'board', kind, ARGV[4])
redis.call('HINCRBY', p..'board', kind..'_revision', 1)
redis.call('HSET', p..'board', kind..'_at', redis.call('TIME')[1])
redis.call('EXPIRE', p..'board', ARGV[5])
return 1
"""
# Of what may not be written to a full server the first is refused, and nothing after what was: so adding comes first.
GREET = """
local p, id, node, gone, most = ARGV[1], ARGV[2], ARGV[3], ARGV[5], tonumber(ARGV[6])
local now, found, others, about = tonumber(redis.call('TIME')[1]), {}, 0, ARGV[8]
local at = redis.call('ZSCORE', p..id, about)
local before = at and tonumber(at) > now - gone and redis.call('HGET', p..id..':words', about)
if before then found = {id, about, before} end
if node ~= '' then
  redis.call('HSET', p..id..':words', node, ARGV[4])
  redis.call('ZADD', p..'keys', now, id)
  redis.call('ZADD', p..id, now, node)
  for _, key in ipairs({'keys', id, id..':words'}) do redis.call('EXPIRE', p..key, gone) end
end
redis.call('ZREMRANGEBYSCORE', p..'keys', '-inf', now - gone)
for _, key in ipairs(redis.call('ZREVRANGE', p..'keys', 0, most - 1)) do
  local old = redis.call('ZRANGEBYSCORE', p..key, '-inf', now - gone)
  if node ~= '' and key ~= id then
    local word = redis.call('HGET', p..key..':words', node)
    if word then for _, part in ipairs({key, node, word}) do table.insert(found, part) end end
    table.insert(old, node)
  end
  for _, one in ipairs(old) do
    redis.call('ZREM', p..key, one)
    redis.call('HDEL', p..key..':words', one)
  end
  local last = key == id and tonumber(ARGV[7]) - 1 or most - 1
  for _, one in ipairs(redis.call('ZREVRANGE', p..key, 0, last)) do
    if key == id or others < most then
      others = others + (key == id and 0 or 1)
      local word = key ~= id and redis.call('HGET', p..key..':words', one) or ''
      if key ~= id or one ~= about or not before then
        for _, part in ipairs({key, one, word}) do table.insert(found, part) end
      end
    end
  end
end
return found
"""
REPORT = """
return {redis.call('TIME')[1], redis.call('HMGET', ARGV[1]..'board', 'report_revision', 'report', 'report_at')}
"""
CLOSE = """
local p, n, node = ARGV[1], ARGV[2], ARGV[3]
local q = p..n..':'
if node ~= '' then
  redis.call('ZREM', q..'members', node)
  redis.call('HDEL', q..'summaries', node)
  redis.call('ZREMRANGEBYSCORE', q..'members', '-inf', '('..(tonumber(redis.call('TIME')[1]) - tonumber(ARGV[4])))
  if redis.call('ZCARD', q..'members') > 0 then return 0 end
end
redis.call('HSET', q..'board', 'closed', 1)
if redis.call('GET', p..'open') == n then redis.call('DEL', p..'open') end
for _, key in ipairs({'board', 'summaries', 'members', 'put_at'}) do redis.call('EXPIRE', q..key, ARGV[5]) end
return 1
"""
POST = """
local p, name, anew, seconds = ARGV[1], ARGV[2], ARGV[4], tonumber(ARGV[5])
local now = tonumber(redis.call('TIME')[1])
for _, old in ipairs(redis.call('ZRANGEBYSCORE', p..'until', '-inf', now)) do
  redis.call('HDEL', p..'orders', old)
  redis.call('ZREM', p..'until', old)
end
local there = redis.call('HEXISTS', p..'orders', name) == 1
if there and anew == '0' then return 1 end
if not there and redis.call('HLEN', p..'orders') >= tonumber(ARGV[6]) then return 0 end
redis.call('HSET', p..'orders', name, ARGV[3])
redis.call('ZADD', p..'until', now + seconds, name)
redis.call('SET', p..'life', ARGV[7], 'NX')
redis.call('INCR', p..'count')
local last = math.ceil(tonumber(redis.call('ZRANGE', p..'until', -1, -1, 'WITHSCORES')[2]) - now) + 60
for _, key in ipairs({'orders', 'until', 'life', 'count'}) do redis.call('EXPIRE', p..key, last) end
return 1
"""
POSTED = """
local p = ARGV[1]
local life = redis.call('GET', p..'life')
if not life then return {''} end
local revision = life..':'..(redis.call('GET', p..'count') or '0')
if revision == ARGV[2] then return {revision} end
local found, now = {revision}, tonumber(redis.call('TIME')[1])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', p..'until', now + 1, '+inf')) do
  local left = tonumber(redis.call('ZSCORE', p..'until', name)) - now
  for _, part in ipairs({name, redis.call('HGET', p..'orders', name) or '', tostring(left)}) do
    table.insert(found, part)
  end
end
return found
"""

# Of functions above, as a node's turn takes them one after the other: where an answer takes seconds, one is waited for.
TURN = "".join(
    f"local function {name}(ARGV)\n{text.strip()}\nend\n"
    for name, text in (
        ("mark", MARK), ("renew", RENEW), ("put", PUT), ("claim", CLAIM), ("close", CLOSE), ("look", LOOK),
    )
) + """
local job, n, node, told, generation, summary = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local claims, report, closes, known = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local claim_ms, kept, closed = ARGV[11], ARGV[12], ARGV[13]
local p = job..n..':'
local told_noted, report_noted, held, text = 0, 0, '0', ''
if told ~= '' then told_noted = mark({p, generation, 'told', told, kept}) end
if generation ~= '0' and renew({p, node, generation, claim_ms}) == 1 then held = generation end
if summary ~= '' then put({p, node, summary, kept}) end
if claims == '1' and held == '0' then held = tostring(claim({p, node, claim_ms, kept})) end
if report ~= '' and held ~= '0' then report_noted = mark({p, held, 'report', report, kept}) end
if closes == '1' then close({job, n, '', 0, closed}) end
local seen = look({p, node})
local revision = seen[2][4]
if held == '0' and revision and revision ~= known then text = redis.call('HGET', p..'board', 'report') or '' end
return {told_noted, tonumber(held), report_noted, seen, text}
"""  # fmt: skip

# Answers with what an application reads from a request by Rack::Request.
require 'json'

# JSON in ASCII, with bytes as Latin-1 characters. What is absent is null.
def plain(value)
  case value
  when String then value.dup.force_encoding('ISO-8859-1').encode('UTF-8')
  when Array then value.map { |item| plain(item) }
  when Hash then value.to_h { |name, item| [plain(name), plain(item)] }
  else value
  end
end

run(lambda do |env|
  request = Rack::Request.new(env)
  handler = env['PATH_INFO'] == '/login' ? 'login' : 'other'
  seen = {
    handler: handler,
    method: request.request_method,
    query: request.GET['plan'],
    cookie: request.cookies['session'],
    key: request.get_header('HTTP_X_API_KEY'),
    plan: request.get_header('HTTP_X_PLAN'),
    host: request.host,
    authorization: request.get_header('HTTP_AUTHORIZATION')
  }
  body = JSON.generate(plain(seen), ascii_only: true)
  headers = { 'content-type' => 'application/json', 'x-handler' => handler, 'content-length' => body.bytesize.to_s }
  [200, headers, request.head? ? [] : [body]]
end)

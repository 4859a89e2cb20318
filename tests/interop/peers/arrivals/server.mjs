// Node's HTTP server, which says in `x-arrived` what has arrived: see `src/differential`. The argument is the port.
import http from 'node:http'
import { createHash } from 'node:crypto'

const hex = (text) => Buffer.from(text, 'latin1').toString('hex')
const fields = (raw) => raw.flatMap((_, i) => (i % 2 ? [] : [[hex(raw[i]), hex(raw[i + 1])]]))

const server = http.createServer({ maxHeaderSize: 65536, keepAliveTimeout: 600000, requestTimeout: 0 }, (request, response) => {
  const pieces = []
  request.on('data', (piece) => pieces.push(piece))
  request.on('end', () => {
    const body = Buffer.concat(pieces)
    const arrived = {
      method: hex(request.method),
      target: hex(request.url),
      headers: fields(request.rawHeaders),
      trailers: fields(request.rawTrailers),
      length: body.length,
      sha256: createHash('sha256').update(body).digest('hex'),
    }
    const status = Number(request.headers['x-answer'] ?? 200)
    const bare = request.method === 'HEAD' || status === 204 || status === 304
    response.writeHead(status, { 'x-arrived': JSON.stringify(arrived), ...(bare ? {} : { 'content-length': body.length }) })
    response.end(bare ? undefined : body)
  })
})
// More fields than the default of 2000 would be cut off without a word.
server.maxHeadersCount = 0
server.listen(Number(process.argv[2]), '127.0.0.1')

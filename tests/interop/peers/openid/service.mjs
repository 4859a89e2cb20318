// A small authentication service behind `forward_auth`: it sends people to an OpenID Connect provider and keeps their sessions.
// node service.mjs PORT ISSUER OUTSIDE
import http from 'node:http';
import { createHash, randomBytes } from 'node:crypto';
import { createRemoteJWKSet, jwtVerify } from 'jose';

const [port, issuer, outside] = process.argv.slice(2);
const redirect = `${outside}/_auth/callback`;
const client = { id: 'sealane', secret: 'the-secret-of-the-test-client' };
const sessions = new Map();
const logins = new Map();
const random = () => randomBytes(32).toString('base64url');

let discovered;
async function provider() {
  discovered ??= await (await fetch(`${issuer}/.well-known/openid-configuration`)).json();
  return discovered;
}

function cookies(request) {
  const pairs = (request.headers.cookie ?? '').split(';').map((pair) => pair.trim().split('='));
  return Object.fromEntries(pairs);
}

// The question of the gateway: who is it? Nobody: to the provider.
async function verify(request, response) {
  const user = sessions.get(cookies(request).session);
  if (user) {
    response.writeHead(204, { 'Remote-User': user.sub, 'Remote-Email': user.email });
    return response.end();
  }
  const [state, nonce, verifier] = [random(), random(), random()];
  logins.set(state, { nonce, verifier, uri: request.headers['x-forwarded-uri'] });
  const target = new URL((await provider()).authorization_endpoint);
  target.search = new URLSearchParams({
    client_id: client.id,
    response_type: 'code',
    scope: 'openid email',
    redirect_uri: redirect,
    state,
    nonce,
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
  }).toString();
  response.writeHead(302, {
    Location: target.toString(),
    'Set-Cookie': `login=${state}; Path=/_auth/; HttpOnly; Secure; SameSite=Lax`,
    'Cache-Control': 'no-store',
  });
  response.end();
}

// The browser is back from the provider.
async function callback(request, response, query) {
  const state = query.get('state');
  const login = logins.get(state);
  if (!login || cookies(request).login !== state) {
    response.writeHead(400);
    return response.end('another login');
  }
  logins.delete(state);
  const { token_endpoint, jwks_uri } = await provider();
  const answer = await fetch(token_endpoint, {
    method: 'POST',
    headers: { Authorization: `Basic ${Buffer.from(`${client.id}:${client.secret}`).toString('base64')}` },
    body: new URLSearchParams({
      grant_type: 'authorization_code',
      code: query.get('code'),
      redirect_uri: redirect,
      code_verifier: login.verifier,
    }),
  });
  const { id_token } = await answer.json();
  const keys = createRemoteJWKSet(new URL(jwks_uri));
  const { payload } = await jwtVerify(id_token, keys, { issuer, audience: client.id });
  if (payload.nonce !== login.nonce) throw new Error('another nonce');
  const session = random();
  sessions.set(session, { sub: payload.sub, email: payload.email });
  response.writeHead(302, {
    Location: login.uri,
    'Set-Cookie': `session=${session}; Path=/; HttpOnly; Secure; SameSite=Lax`,
    'Cache-Control': 'no-store',
  });
  response.end();
}

http.createServer(async (request, response) => {
  const url = new URL(request.url, 'http://service');
  try {
    if (url.pathname === '/verify') await verify(request, response);
    else if (url.pathname === '/_auth/callback') await callback(request, response, url.searchParams);
    else if (url.pathname === '/_auth/logout') {
      sessions.delete(cookies(request).session);
      response.writeHead(204).end();
    } else response.writeHead(404).end();
  } catch (error) {
    console.error(error);
    response.writeHead(500).end();
  }
}).listen(Number(port), '127.0.0.1');

// An OpenID Connect provider for tests: oidc-provider with one client, which believes each user's name.
// node provider.mjs PORT REDIRECT_URI
import { Provider } from 'oidc-provider';

const [port, redirect] = process.argv.slice(2);
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: 'sealane',
    client_secret: 'the-secret-of-the-test-client',
    redirect_uris: [redirect],
    grant_types: ['authorization_code'],
    response_types: ['code'],
  }],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'], profile: ['preferred_username'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['a key for tests'] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({
      sub: id,
      preferred_username: id,
      email: `${id}@example.test`,
      email_verified: true,
      groups: id === 'alice' ? ['vpn'] : [],
    }),
  }),
});
provider.on('server_error', (_, error) => console.error(error));
provider.listen(Number(port), '127.0.0.1');

package console_test

import (
	"html"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/functions/internal/cluster"
)

func TestSigningSecretIsShownOnRequest(t *testing.T) {
	t.Parallel()
	s := cluster.Serve(t)
	shop := s.NewCaller("shop", "submitter")
	b := logIn(t, shop)
	const page = "/console/webhooks/signing-secret"
	b.get("/console/webhooks").has(t, `href="`+page+`"`)
	require.NotContains(t, b.get(page).text, "whsec_", "the secret is hidden until the button is pressed")
	secret := func() string { return shop.Get("/api/v1/webhooks/signing-secret").Data("secret").(string) }
	got := b.submit(page + "/show")
	require.Contains(t, html.UnescapeString(got.text), secret())
	require.Equal(t, "no-store", got.header.Get("Cache-Control"))
	before := secret()
	got = b.submit(page + "/rotate")
	require.Contains(t, html.UnescapeString(got.text), secret())
	got.has(t, "Events are signed with the old secret, too")
	require.NotEqual(t, before, secret())
	require.Equal(t, 403, logIn(t, s.NewCaller("viewer", "viewer")).get(page).status)
}

package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

const (
	signingSecretPath = "/api/v1/webhooks/signing-secret"
	signingSecretPage = "/console/webhooks/signing-secret"
)

// signingSecret is the page of the visitor's own secret, which signs calls of its callback_urls. A button shows the secret.
func (s *site) signingSecret(p *page) error { return p.showSigningSecret(api.SigningSecretResponse{}) }

func (p *page) showSigningSecret(shown api.SigningSecretResponse) error {
	if !p.MaySubmit() {
		return &api.Error{Status: http.StatusForbidden, Message: p.T("Only submitters have callback URLs and a secret that signs the calls.")}
	}
	return p.show("signing_secret", p.T("Secret of callback URLs"), shown)
}

// changeSigningSecret handles the buttons of the page: show or rotate.
func (s *site) changeSigningSecret(p *page) (err error) {
	var shown api.SigningSecretResponse
	switch p.PathValue("do") {
	case "show":
		shown, err = get[api.SigningSecretResponse](p, signingSecretPath, nil)
	case "rotate":
		shown, err = post[api.SigningSecretResponse](p, signingSecretPath+"/rotate", nil)
	default:
		return s.notFound(p)
	}
	if err != nil {
		return err
	}
	if err := p.setAddress(signingSecretPage); err != nil {
		return err
	}
	return p.showSigningSecret(shown)
}

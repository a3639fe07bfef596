package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

const signingSecretPath = "/api/v1/webhooks/signing-secret"

// signingSecret shows the page of the secret that signs calls to the visitor's callback URLs. A button on the page shows the secret.
func (p *page) signingSecret() error { return p.showSigningSecret(api.SigningSecretResponse{}) }

func (p *page) showSigningSecret(shown api.SigningSecretResponse) error {
	if !p.MaySubmit() {
		return &api.Error{Status: http.StatusForbidden, Message: p.T("Only submitters have callback URLs and a secret that signs the calls.")}
	}
	return p.show("signing_secret", p.T("Secret of callback URLs"), shown)
}

// changeSigningSecret handles the buttons of the page: show or rotate.
func (p *page) changeSigningSecret() error {
	var shown api.SigningSecretResponse
	var err error
	switch p.PathValue("do") {
	case "show":
		shown, err = get[api.SigningSecretResponse](p, signingSecretPath, nil)
	case "rotate":
		shown, err = post[api.SigningSecretResponse](p, signingSecretPath+"/rotate", nil)
	default:
		return p.notFound()
	}
	if err != nil {
		return err
	}
	p.setAddress("/console/webhooks/signing-secret")
	return p.showSigningSecret(shown)
}

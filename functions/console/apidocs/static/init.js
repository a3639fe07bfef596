"use strict";
// validatorUrl: null sends the contract to nobody.
window.ui = SwaggerUIBundle({
  url: "/openapi.yaml",
  dom_id: "#ui",
  validatorUrl: null,
  tryItOutEnabled: true,
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  displayRequestDuration: true,
});
